//! Base64 as in Go's encoding/base64.

use base64::engine::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use base64::{DecodeError, DecodeSliceError};

/// Encodes bytes in standard base64 with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Index of the first invalid byte; `None` for valid base64.
pub(crate) fn first_invalid_index(text: &str) -> Option<usize> {
    let mut buffer = vec![0; text.len()];
    match STANDARD.decode_slice(text, &mut buffer) {
        Ok(_) => None,
        Err(DecodeSliceError::DecodeError(
            DecodeError::InvalidByte(at, _)
            | DecodeError::InvalidLastSymbol(at, _)
            | DecodeError::InvalidLength(at),
        )) => Some(at),
        Err(
            DecodeSliceError::DecodeError(DecodeError::InvalidPadding)
            | DecodeSliceError::OutputSliceTooSmall,
        ) => Some(text.len()),
    }
}

/// Encodes bytes in URL-safe base64 without padding.
pub(crate) fn encode_url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes URL-safe base64. The error is the index of the first invalid byte.
pub(crate) fn decode_url(text: &str) -> Result<Vec<u8>, usize> {
    URL_SAFE_NO_PAD.decode(text).map_err(|error| match error {
        DecodeError::InvalidByte(at, _)
        | DecodeError::InvalidLastSymbol(at, _)
        | DecodeError::InvalidLength(at) => at,
        DecodeError::InvalidPadding => text.len(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn invalid_base64_is_located() {
        for (text, expected) in
            [("", None), ("Zg==", None), ("Zm9v", None), ("Zm9v!", Some(4)), ("Zg", Some(2))]
        {
            assert_eq!(super::first_invalid_index(text), expected, "{text}");
        }
    }
}
