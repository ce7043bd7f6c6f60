//! The null procedure of ONC RPC version 2 (RFC 5531) over TCP: whether a server responds, and to a version of
//! a program.

/// The program NFS.
const NFS_PROGRAM: u32 = 100_003;
/// Highest bit of a record mark: the last fragment.
const LAST_FRAGMENT: u32 = 1 << 31;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const ACCEPTED: u32 = 0;
const SUCCESS: u32 = 0;
const PROGRAM_UNAVAILABLE: u32 = 1;
const VERSION_MISMATCH: u32 = 2;
/// Maximum length of a reply in bytes: a reply to the null procedure with the longest verifier has 424.
const MAX_REPLY_BYTES: u32 = 1024;

/// The reason why a reply to the null procedure shows no server of the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NullReplyError {
    /// The bytes are no reply to the call.
    #[error("its response is not one of RPC")]
    NotRpc,
    /// The server denies the call.
    #[error("it denies calls without credentials")]
    Denied,
    /// The server has no program NFS.
    #[error("it does not serve NFS")]
    NoNfs,
    /// The server has other versions.
    #[error("it serves the versions {low} to {high} of NFS")]
    OtherVersions {
        /// The lowest version.
        low: u32,
        /// The highest version.
        high: u32,
    },
    /// The server rejects the call with another status.
    #[error("it rejects the null procedure with the status {status}")]
    Rejected {
        /// The status.
        status: u32,
    },
}

/// Length of a record mark in bytes.
pub(crate) const MARK_BYTES: usize = 4;

/// A call of the null procedure of NFS, with its record mark and without credentials.
pub(crate) fn null_call(xid: u32, version: u32) -> Vec<u8> {
    // Credentials and verifier are AUTH_NONE, with no bytes.
    let words = [xid, CALL, RPC_VERSION, NFS_PROGRAM, version, 0, 0, 0, 0, 0];
    let length = u32::try_from(words.len() * 4).unwrap_or_default();
    [LAST_FRAGMENT | length].iter().chain(&words).flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns the length of the reply after this record mark.
///
/// # Errors
/// [`NullReplyError::NotRpc`]
pub(crate) fn reply_length(mark: [u8; MARK_BYTES]) -> Result<usize, NullReplyError> {
    let mark = u32::from_be_bytes(mark);
    let length = mark & !LAST_FRAGMENT;
    if mark & LAST_FRAGMENT == 0 || length > MAX_REPLY_BYTES {
        return Err(NullReplyError::NotRpc);
    }
    usize::try_from(length).map_err(|_| NullReplyError::NotRpc)
}

/// Checks the reply to a null call with this transaction id.
///
/// # Errors
/// [`NullReplyError`]
pub(crate) fn check_null_reply(reply: &[u8], xid: u32) -> Result<(), NullReplyError> {
    let mut words = reply.chunks(4).map(|word| word.try_into().map(u32::from_be_bytes));
    let mut next = || words.next().and_then(Result::ok).ok_or(NullReplyError::NotRpc);
    if next()? != xid || next()? != REPLY {
        return Err(NullReplyError::NotRpc);
    }
    if next()? != ACCEPTED {
        return Err(NullReplyError::Denied);
    }
    let _flavor = next()?;
    let verifier_words = next()?.div_ceil(4);
    for _ in 0..verifier_words {
        next()?;
    }
    match next()? {
        SUCCESS => Ok(()),
        PROGRAM_UNAVAILABLE => Err(NullReplyError::NoNfs),
        VERSION_MISMATCH => {
            let (low, high) = (next()?, next()?);
            Err(NullReplyError::OtherVersions { low, high })
        }
        status => Err(NullReplyError::Rejected { status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn null_calls_have_the_form_of_rfc_5531() {
        let expected = words(&[0x8000_0028, 7, 0, 2, 100_003, 4, 0, 0, 0, 0, 0]);
        assert_eq!(null_call(7, 4), expected);
    }

    #[test]
    fn replies_are_checked() {
        let rows: [(&[u32], Result<(), NullReplyError>); 9] = [
            (&[7, 1, 0, 0, 0, 0], Ok(())),
            (&[7, 1, 0, 1, 5, 9, 9, 0], Ok(())),
            (&[8, 1, 0, 0, 0, 0], Err(NullReplyError::NotRpc)),
            (&[7, 0, 0, 0, 0, 0], Err(NullReplyError::NotRpc)),
            (&[7, 1, 1, 1, 1], Err(NullReplyError::Denied)),
            (&[7, 1, 0, 0, 0, 1], Err(NullReplyError::NoNfs)),
            (&[7, 1, 0, 0, 0, 2, 3, 4], Err(NullReplyError::OtherVersions { low: 3, high: 4 })),
            (&[7, 1, 0, 0, u32::MAX, 0], Err(NullReplyError::NotRpc)),
            (&[7, 1, 0, 0, 0, 5], Err(NullReplyError::Rejected { status: 5 })),
        ];
        for (reply, expected) in rows {
            assert_eq!(check_null_reply(&words(reply), 7), expected, "{reply:?}");
        }
        assert_eq!(check_null_reply(&[0, 0, 0], 7), Err(NullReplyError::NotRpc));
    }

    #[test]
    fn marks_of_other_protocols_are_rejected() {
        assert_eq!(reply_length([0x80, 0, 0, 24]), Ok(24));
        for mark in [*b"SSH-", *b"HTTP", [0, 0, 0, 24], [0x80, 0, 4, 1]] {
            assert!(reply_length(mark).is_err(), "{mark:?}");
        }
    }
}
