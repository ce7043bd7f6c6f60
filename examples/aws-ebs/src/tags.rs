//! Tags of volumes and snapshots, by which later calls find them.

use cofferdam_guest::{ReclaimPolicy, Result, StorageError, digest, handle};

use crate::xml::Tag;

/// The name in the request, in characters that are no wildcards of a filter.
pub(crate) const NAME: &str = "cofferdam.dev/name";
/// Parameters and capabilities of the request.
pub(crate) const REQUEST: &str = "cofferdam.dev/request";
/// The owner: reclaim policy, cluster, claim and object, separated by spaces. Empty if there is none.
pub(crate) const OWNER: &str = "cofferdam.dev/owner";
/// With the ID of an instance: the ID of its node.
pub(crate) const NODE_PREFIX: &str = "cofferdam.dev/node/";
/// Maximum characters of a value.
const MAX_VALUE: usize = 256;

/// The value of a tag.
pub(crate) fn get<'a>(tags: &'a [Tag], key: &str) -> Option<&'a str> {
    tags.iter().find(|tag| tag.key == key).map(|tag| tag.value.as_str())
}

/// The value of [`NAME`], for names that are unique in a scope.
///
/// # Errors
///
/// - `invalid-argument` if the name is empty, longer than 128 bytes or has control characters.
pub(crate) fn name(scope: &str, name: &str) -> Result<String> {
    if name.is_empty() || name.len() > handle::MAX_LENGTH || name.contains(char::is_control) {
        let expected = "expected 1 to 128 bytes without control characters";
        return Err(StorageError::invalid_argument(format!("the name is {name:?}; {expected}")));
    }
    Ok(handle::from_name("name", &format!("{scope}{name}")))
}

/// A text as the value of a tag. A longer text than EC2 allows becomes its digest.
pub(crate) fn value(text: String) -> String {
    if text.chars().count() <= MAX_VALUE { text } else { digest::sha256_hex(text) }
}

/// The value of [`OWNER`]: no name or ID of Kubernetes contains a space.
///
/// # Errors
///
/// - `invalid-argument` if the value is longer than EC2 allows.
pub(crate) fn owner(policy: ReclaimPolicy, ids: [&str; 3]) -> Result<String> {
    let policy = if matches!(policy, ReclaimPolicy::Delete) { "delete" } else { "retain" };
    let owner = format!("{policy} {}", ids.join(" "));
    if owner.chars().count() > MAX_VALUE {
        let message = format!("the tag {OWNER} would be {owner:?}; expected at most {MAX_VALUE} characters");
        return Err(StorageError::invalid_argument(message));
    }
    Ok(owner)
}

/// Reads [`OWNER`]. An unknown policy counts as `Retain`, so that the item is never deleted as an orphan.
pub(crate) fn parse_owner(tags: &[Tag]) -> Option<(ReclaimPolicy, [String; 3])> {
    let mut words = get(tags, OWNER)?.splitn(4, ' ').map(str::to_owned);
    let is_deleted = words.next()? == "delete";
    let policy = if is_deleted { ReclaimPolicy::Delete } else { ReclaimPolicy::Retain };
    Some((policy, [words.next()?, words.next()?, words.next()?]))
}
