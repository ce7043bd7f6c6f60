//! Paged listings.

use crate::{Result, StorageError, handle};

/// Hexadecimal digits of the checksum that distinguishes a token from invented text.
const CHECKSUM_DIGITS: usize = 8;

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The items, sorted by key.
    pub items: Vec<T>,
    /// The token of the next page, or `None` on the last page.
    pub next: Option<String>,
}

/// Decodes a token to the key after which the page starts. Without a token the result is `None`.
///
/// # Errors
///
/// - [`aborted`](StorageError::aborted) with finality final if [`token`] did not create the token. The caller
///   restarts the listing.
pub fn key_of_token(after: Option<&str>) -> Result<Option<&str>> {
    let Some(token) = after else { return Ok(None) };
    match token.split_once('.') {
        Some((checksum, key)) if checksum == handle::digest(key, CHECKSUM_DIGITS) => Ok(Some(key)),
        Some(_) | None => Err(StorageError::aborted(format!(
            "no listing has returned the place {token:?}; expected one that did, or none to begin anew"
        ))
        .without_effect()),
    }
}

/// The token for the page after a key. It remains valid when items are added or removed, including the item
/// with this key.
pub fn token(key: &str) -> String {
    format!("{}.{key}", handle::digest(key, CHECKSUM_DIGITS))
}

/// The page of the token `after`, or the first page if `after` is `None`. The page is sorted by key. The
/// items may be given in any order. Their keys must be unique and must never change.
///
/// Without a limit, or with a limit of 0, all remaining items are returned.
///
/// ```
/// use cofferdam_guest::paging;
///
/// let names = || ["c", "a", "b"].map(str::to_owned);
/// let first = paging::page(names(), |name| name, None, Some(2)).unwrap();
/// assert_eq!(first.items, ["a", "b"]);
/// let last = paging::page(names(), |name| name, first.next.as_deref(), Some(2)).unwrap();
/// assert_eq!((last.items, last.next), (vec!["c".to_owned()], None));
/// ```
///
/// # Errors
///
/// The errors of [`key_of_token`].
pub fn page<T>(
    items: impl IntoIterator<Item = T>,
    key_of: impl Fn(&T) -> &str,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<Page<T>> {
    let after = key_of_token(after)?;
    let mut items: Vec<T> =
        items.into_iter().filter(|item| after.is_none_or(|after| key_of(item) > after)).collect();
    items.sort_by(|left, right| key_of(left).cmp(key_of(right)));
    let limit = limit.filter(|limit| *limit > 0).and_then(|limit| usize::try_from(limit).ok());
    let next = match limit {
        Some(limit) if items.len() > limit => {
            items.truncate(limit);
            items.last().map(|last| token(key_of(last)))
        }
        Some(_) | None => None,
    };
    Ok(Page { items, next })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Finality};

    #[test]
    fn all_items_are_listed_once_even_if_a_page_ends_at_a_deleted_item() {
        let mut names: Vec<String> = (0..7).map(|n| format!("n{n}")).collect();
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = page(names.clone(), |name| name, after.as_deref(), Some(3)).unwrap();
            let last = page.items.last().cloned().unwrap();
            names.retain(|name| *name != last);
            seen.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, ["n0", "n1", "n2", "n3", "n4", "n5", "n6"]);
    }

    #[test]
    fn an_invalid_token_is_aborted() {
        for token in ["", "n3", ".", "00000000.n3"] {
            let error = page(["n1"], |name| name, Some(token), None).unwrap_err();
            assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::Final), "{token:?}");
        }
        assert_eq!(key_of_token(Some(&token(""))).unwrap(), Some(""));
    }

    #[test]
    fn no_limit_and_limit_0_are_the_same() {
        for limit in [None, Some(0), Some(2)] {
            let page = page(["b", "a"], |name| name, None, limit).unwrap();
            assert_eq!((page.items, page.next), (vec!["a", "b"], None));
        }
    }
}
