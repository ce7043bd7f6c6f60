//! Calls that may come twice: find what the same call has made, or make it.

use std::fmt::Debug;

use crate::{CapacityRange, ErrorKind, Owner, Result, StorageError};

/// How making something ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created<T> {
    /// It is there now.
    New(T),
    /// Something of this name is there already: another call was faster, or an earlier answer was lost.
    AlreadyExists,
}

/// Finds what the same call has made, or makes it. `same` compares what was found with what is asked for;
/// [`Existing`] helps.
///
/// The storage has to refuse a second item of a name: `create` is told by it, not by an earlier look.
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
///             if response.status == 412 { Ok(Created::AlreadyExists) } else { response.ok_or(|_| None)?.json().map(Created::New) }
///         },
///     )
/// }
///
/// // Somebody else makes the volume between the look and the request.
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
/// What the functions returned; [`in_progress`](StorageError::in_progress) when the name is taken by
/// something that cannot be found. When `find` got no answer (of kind `unavailable`, `deadline-exceeded`,
/// `cancelled`, `internal` or `unknown`), its error is never final: an earlier call of the same name may have
/// made something that this look did not see, and whoever believes a final error forgets it.
pub fn find_or_create<T>(
    mut find: impl FnMut() -> Result<Option<T>>,
    check: impl FnOnce(&T) -> Result<()>,
    create: impl FnOnce() -> Result<Created<T>>,
) -> Result<T> {
    let mut find = || find().map_err(not_final_without_response);
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

/// The error of a look, which is not final if the look saw nothing.
fn not_final_without_response(error: StorageError) -> StorageError {
    match error.kind {
        ErrorKind::Unavailable
        | ErrorKind::DeadlineExceeded
        | ErrorKind::Cancelled
        | ErrorKind::Internal
        | ErrorKind::Unknown => error.after_change(),
        ErrorKind::InvalidArgument
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::PermissionDenied
        | ErrorKind::Unauthenticated
        | ErrorKind::ResourceExhausted
        | ErrorKind::FailedPrecondition
        | ErrorKind::Aborted
        | ErrorKind::OutOfRange
        | ErrorKind::Unimplemented
        | ErrorKind::DataLoss => error,
    }
}

/// Compares what exists with what is asked for, and keeps the first difference.
#[derive(Clone, Debug)]
#[must_use = "only `check` tells"]
pub struct ExistingComparison<'a> {
    kind: &'a str,
    name: &'a str,
    difference: Option<String>,
}

impl<'a> ExistingComparison<'a> {
    /// Begins the comparison of something, such as a `volume`, with a name.
    pub fn new(what: &'a str, name: &'a str) -> Self {
        Self { kind: what, name, difference: None }
    }

    /// Compares one thing.
    pub fn equal<T: PartialEq + Debug + ?Sized>(mut self, field: &str, found: &T, requested: &T) -> Self {
        if self.difference.is_none() && found != requested {
            self.difference = Some(format!("its {field} is {found:?}, not {requested:?}"));
        }
        self
    }

    /// Compares the size with the range that is asked for.
    pub fn size_within(mut self, bytes: u64, requested: &CapacityRange) -> Self {
        if self.difference.is_none() && !requested.contains(bytes) {
            self.difference = Some(format!("its size is {bytes} bytes, not {}", requested.describe()));
        }
        self
    }

    /// Compares the cluster that a volume was made for, if that was kept, with the one that asks, if it says
    /// who it is. On storage that several clusters share, a volume of the same name may be another one's.
    pub fn same_cluster(self, found: Option<&str>, requested: Option<&Owner>) -> Self {
        match (found, requested) {
            (Some(found), Some(owner)) => self.equal("cluster", found, &owner.cluster_id),
            (None, _) | (_, None) => self,
        }
    }

    /// Ends the comparison.
    ///
    /// # Errors
    ///
    /// [`already_exists`](StorageError::already_exists), final, which names the first difference.
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
    use crate::Finality;

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
        let refused = || Err(StorageError::failed_precondition("no secret"));
        let error = find_or_create(refused, |_: &u8| Ok(()), || Ok(Created::AlreadyExists)).unwrap_err();
        assert_eq!(error.finality, Finality::Final, "the same call can never succeed");
    }
}
