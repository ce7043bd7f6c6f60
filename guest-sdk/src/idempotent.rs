//! Create operations that may be repeated: return the item of an earlier identical call, or create it.
//!
//! The storage determines the function:
//!
//! | the storage | use |
//! |---|---|
//! | refuses a second item of a name, or has conditional writes | [`find_or_create`] |
//! | gives ids, and executes requests with the same token once | [`CreationTokens::find_or_create`] |
//! | gives ids, and accepts several items of a name | [`oldest_wins`] |
//!
//! A [lease](crate::lease) in the state makes duplicates rarer, but it does not prevent them: the storage may
//! execute a request after its response is lost, and another Cofferdam process has another state.

mod oldest;
mod tokens;

use std::fmt::Debug;

pub use self::{
    oldest::{Candidate, oldest_wins},
    tokens::{CreationTokens, TokenOutcome},
};
use crate::{CapacityRange, Owner, Result, StorageError};

/// Result of an attempt to create an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created<T> {
    /// The item was created.
    New(T),
    /// An item with this name exists: another call or client created it after the lookup, or the lookup did
    /// not show it yet.
    AlreadyExists,
}

/// Returns the item that an earlier identical call created, or creates it.
///
/// `check` compares an existing item with the request; [`ExistingComparison`] helps. `create` must rely on
/// the storage to reject a second item with the same name, not on the result of `find`.
///
/// ```
/// use cofferdam_guest::{Result, http, idempotent::{self, Created, ExistingComparison}, mock};
///
/// fn create(name: &str, bytes: u64) -> Result<u64> {
///     let url = format!("http://array/volumes/{name}");
///     idempotent::find_or_create(
///         || {
///             let response = http::Request::get(&url).send()?;
///             if response.status == 404 { Ok(None) } else { response.ok_or(|_| None)?.json().map(Some) }
///         },
///         |found: &u64| ExistingComparison::new("volume", name).equal("size", found, &bytes).check(),
///         || {
///             let response = http::Request::put(&url).header("if-none-match", "*").json(&bytes)?.send()?;
///             match response.status {
///                 412 => Ok(Created::AlreadyExists),
///                 _ => response.ok_or(|_| None)?.json().map(Created::New),
///             }
///         },
///     )
/// }
///
/// // Another client creates the volume between the lookup and the request.
/// let mut looks = 0;
/// let _host = mock::MockHost::new()
///     .on(http::Method::Get, "http://array/", move |_| {
///         looks += 1;
///         Ok(if looks == 1 { http::Response::new(404) } else { http::Response::new(200).with_body("7") })
///     })
///     .on(http::Method::Put, "http://array/", |_| Ok(http::Response::new(412)))
///     .install();
/// assert_eq!(create("v", 8).unwrap_err().message, r#"the volume "v" exists: its size is 7, not 8"#);
/// ```
///
/// # Errors
///
/// - The errors of `find`, `check` and `create`.
/// - [`in_progress`](StorageError::in_progress) if the name is taken, but `find` returns nothing.
///
/// An error of `find` that does not tell whether the item exists (kind `unavailable`, `deadline-exceeded`,
/// `cancelled`, `internal`, `unknown`, `unauthenticated` or `permission-denied`) is never final. An earlier
/// call may have created an item that `find` did not see, and a caller does not clean up after a final error.
pub fn find_or_create<T>(
    mut find: impl FnMut() -> Result<Option<T>>,
    check: impl FnOnce(&T) -> Result<()>,
    create: impl FnOnce() -> Result<Created<T>>,
) -> Result<T> {
    let mut find = || find().map_err(StorageError::not_final_without_answer);
    if let Some(found) = find()? {
        return check(&found).map(|()| found);
    }
    match create()? {
        Created::New(created) => Ok(created),
        Created::AlreadyExists => match find()? {
            Some(found) => check(&found).map(|()| found),
            None => Err(StorageError::in_progress("the name is taken by something that is not there yet")),
        },
    }
}

/// Compares an existing item with a request and records the first difference.
#[derive(Clone, Debug)]
#[must_use = "only `check` tells"]
pub struct ExistingComparison<'a> {
    kind: &'a str,
    name: &'a str,
    difference: Option<String>,
}

impl<'a> ExistingComparison<'a> {
    /// Starts a comparison. `what` is the kind of the item, such as `volume`.
    pub fn new(what: &'a str, name: &'a str) -> Self {
        Self { kind: what, name, difference: None }
    }

    /// Compares one field.
    pub fn equal<T: PartialEq + Debug + ?Sized>(mut self, field: &str, found: &T, requested: &T) -> Self {
        if self.difference.is_none() && found != requested {
            self.difference = Some(format!("its {field} is {found:?}, not {requested:?}"));
        }
        self
    }

    /// Checks that the size is within the requested range.
    pub fn size_within(mut self, bytes: u64, requested: &CapacityRange) -> Self {
        if self.difference.is_none() && !requested.contains(bytes) {
            self.difference = Some(format!("its size is {bytes} bytes, not {}", requested.describe()));
        }
        self
    }

    /// Compares the cluster recorded for the volume with the requesting cluster, if both are known. On
    /// storage shared by several clusters, a volume of the same name may belong to another cluster.
    pub fn same_cluster(self, found: Option<&str>, requested: Option<&Owner>) -> Self {
        match (found, requested) {
            (Some(found), Some(owner)) => self.equal("cluster", found, &owner.cluster_id),
            (None, _) | (_, None) => self,
        }
    }

    /// Returns the result of the comparison.
    ///
    /// # Errors
    ///
    /// - [`already_exists`](StorageError::already_exists), final: the message names the first difference.
    pub fn check(self) -> Result<()> {
        match self.difference {
            Some(difference) => Err(StorageError::already_exists(format!(
                "the {} {:?} exists: {difference}",
                self.kind, self.name
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Finality};

    #[test]
    fn the_first_difference_is_named() {
        let range = CapacityRange { required_bytes: Some(5), limit_bytes: Some(6) };
        let error = ExistingComparison::new("volume", "v")
            .equal("tier", "a", "a")
            .size_within(7, &range)
            .equal("x", &1, &2)
            .check();
        let error = error.unwrap_err();
        assert_eq!(error.message, r#"the volume "v" exists: its size is 7 bytes, not 5 to 6 bytes"#);
        assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
        ExistingComparison::new("volume", "v")
            .equal("tier", "a", "a")
            .size_within(6, &range)
            .check()
            .unwrap();
    }

    #[test]
    fn a_volume_of_another_cluster_already_exists() {
        let owner = |cluster: &str| Owner {
            cluster_id: cluster.to_owned(),
            claim_uid: "u".to_owned(),
            pv_name: "pvc-u".to_owned(),
            reclaim_policy: crate::ReclaimPolicy::Delete,
        };
        let check = |found, requested: Option<&Owner>| {
            ExistingComparison::new("volume", "v").same_cluster(found, requested).check()
        };
        for (found, requested) in
            [(None, None), (Some("a"), None), (None, Some(owner("b"))), (Some("a"), Some(owner("a")))]
        {
            check(found, requested.as_ref()).unwrap();
        }
        let error = check(Some("a"), Some(&owner("b"))).unwrap_err();
        assert_eq!(error.message, r#"the volume "v" exists: its cluster is "a", not "b""#);
    }

    #[test]
    fn an_existing_name_that_cannot_be_found_is_in_progress() {
        let error = find_or_create(|| Ok(None::<u8>), |_| Ok(()), || Ok(Created::AlreadyExists)).unwrap_err();
        assert_eq!(error.finality, Finality::InProgress);
        assert_eq!(find_or_create(|| Ok(None), |_| Ok(()), || Ok(Created::New(3))), Ok(3));
        let found = find_or_create(|| Ok(Some(4)), |_| Ok(()), || Err(StorageError::internal("not asked")));
        assert_eq!(found, Ok(4));
    }

    #[test]
    fn a_failed_lookup_is_never_final() {
        let unavailable = || Err(StorageError::unavailable("?").without_effect());
        let error = find_or_create(unavailable, |_: &u8| Ok(()), || Ok(Created::AlreadyExists)).unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown));
        for refusal in [StorageError::unauthenticated("?"), StorageError::permission_denied("?")] {
            let refused = || Err(refusal.clone());
            let error = find_or_create(refused, |_: &u8| Ok(()), || Ok(Created::AlreadyExists)).unwrap_err();
            assert_eq!((error.kind, error.finality), (refusal.kind, Finality::Unknown));
        }
        let refused = || Err(StorageError::failed_precondition("no secret"));
        let error = find_or_create(refused, |_: &u8| Ok(()), || Ok(Created::AlreadyExists)).unwrap_err();
        assert_eq!(error.finality, Finality::Final, "the same call can never succeed");
    }
}
