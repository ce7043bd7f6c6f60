//! Replies of NFS servers to the null procedure.

use cofferdam_node::fuzzing::{self, MARK_BYTES};

use crate::message::assert_printable;

/// Most bytes of an error of a server.
const MAX_MESSAGE_BYTES: usize = 80;
/// Most bytes of a reply to the null procedure.
const MAX_REPLY_BYTES: usize = 1024;

/// A transaction id, a record mark, and what the server sends after it.
pub(super) fn null_reply(content: &[u8]) {
    let Some((xid, content)) = content.split_first_chunk::<4>() else { return };
    let Some((mark, content)) = content.split_first_chunk::<MARK_BYTES>() else { return };
    let xid = u32::from_be_bytes(*xid);
    match fuzzing::reply_length(*mark) {
        Ok(length) => {
            assert!(length <= MAX_REPLY_BYTES);
            assert_eq!(u32::from_be_bytes(*mark), 1 << 31 | u32::try_from(length).unwrap_or(u32::MAX));
            if let Some(reply) = content.get(..length) {
                check_reply(reply, xid);
            }
        }
        Err(error) => assert_printable(&error, MAX_MESSAGE_BYTES),
    }
    check_reply(content, xid);
    check_call(xid);
}

fn check_reply(reply: &[u8], xid: u32) {
    let result = fuzzing::check_null_reply(reply, xid);
    let accepted_length = accepted_length(reply, xid);
    assert_eq!(result.is_ok(), accepted_length.is_some(), "{result:?}");
    if let Err(error) = result {
        assert_printable(&error, MAX_MESSAGE_BYTES);
    }
    if let Some(length) = accepted_length {
        let cut = reply.get(..length - 1).unwrap_or_default();
        assert!(fuzzing::check_null_reply(cut, xid).is_err(), "a reply without its end is accepted");
        assert!(fuzzing::check_null_reply(reply, xid ^ 1).is_err(), "the reply to another call is accepted");
    }
}

/// The length of an accepted reply by RFC 5531: header, verifier, and the status "success".
fn accepted_length(reply: &[u8], xid: u32) -> Option<usize> {
    let header: Vec<u8> = [xid, 1, 0].into_iter().flat_map(u32::to_be_bytes).collect();
    let after_flavor = reply.strip_prefix(header.as_slice())?.get(4..)?;
    let (verifier_length, body) = after_flavor.split_first_chunk::<4>()?;
    let padded = usize::try_from(u32::from_be_bytes(*verifier_length)).ok()?.next_multiple_of(4);
    let status = body.get(padded..)?.first_chunk::<4>()?;
    (*status == [0; 4]).then_some(reply.len() - body.len() + padded + 4)
}

/// A server that sends the call back does not reply.
fn check_call(xid: u32) {
    let call = fuzzing::null_call(xid, 4);
    let (mark, call) = call.split_first_chunk::<MARK_BYTES>().unwrap_or((&[0; 4], &[]));
    assert_eq!(fuzzing::reply_length(*mark), Ok(call.len()));
    assert!(fuzzing::check_null_reply(call, xid).is_err(), "a call is accepted as a reply");
}
