//! Standard base64 with padding, as Go reads and writes it.

use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, DecodeSliceError};

/// Encodes bytes with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Where a text stops being base64. `None`: it is good.
pub(crate) fn first_wrong(text: &str) -> Option<usize> {
    let mut room = vec![0; text.len()];
    match STANDARD.decode_slice(text, &mut room) {
        Ok(_) => None,
        Err(DecodeSliceError::DecodeError(
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) | DecodeError::InvalidLength(at),
        )) => Some(at),
        Err(DecodeSliceError::DecodeError(DecodeError::InvalidPadding) | DecodeSliceError::OutputSliceTooSmall) => {
            Some(text.len())
        }
    }
}

/// How many bytes a base64 text holds.
pub(crate) fn decoded_len(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

#[cfg(test)]
mod tests {
    #[test]
    fn wrong_text_is_found() {
        for (text, expected) in [("", None), ("Zg==", None), ("Zm9v", None), ("Zm9v!", Some(4)), ("Zg", Some(2))] {
            assert_eq!(super::first_wrong(text), expected, "{text}");
        }
    }
}
