//! Creation in storage that has neither unique names nor creation tokens.

use std::time::Duration;

use crate::{Finality, Result, StorageError, ambient, poll};

/// Largest difference between the clocks of this host and of the storage that [`oldest_wins`] allows. An item
/// that is older than this and the settle time needs no second listing.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);

/// An item of the storage that calls for one name have created.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate<T> {
    /// The id that the storage gave to the item.
    pub id: String,
    /// The creation time by the storage's clock, since the Unix epoch.
    pub created_at: Duration,
    /// The item.
    pub item: T,
}

impl<T> Candidate<T> {
    /// An item with its id and its creation time by the storage's clock.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use cofferdam_guest::idempotent::Candidate;
    ///
    /// let candidate = Candidate::new("vol-0ab", Duration::from_secs(1_767_268_800), 8 << 30);
    /// assert_eq!((candidate.id.as_str(), candidate.item), ("vol-0ab", 8_u64 << 30));
    /// ```
    pub fn new(id: impl Into<String>, created_at: Duration, item: T) -> Self {
        Self { id: id.into(), created_at, item }
    }
}

/// Returns the oldest item that calls for a name have created, or creates one, in storage that gives ids
/// (`vol-0ab...`) and accepts several items of one name. All other items of the name are deleted. Two items
/// of the same age are ordered by id, so all calls choose the same item.
///
/// - `list` returns all items of the name, which a tag or description of each item records. It must not
///   return items of other origin: they would be deleted. The tag therefore includes the [cluster
///   id](crate::Owner::cluster_id) of the owner, because two clusters may share an account. A driver whose
///   requests have no owner takes another name of the cluster, such as a setting.
/// - `check` compares the oldest item with the request; [`ExistingComparison`](super::ExistingComparison)
///   helps.
/// - `create` creates an item and returns its id.
/// - `delete` deletes an item, and succeeds if the item does not exist.
///
/// The clocks of this host and of the storage may differ by at most 5 minutes. With a larger difference, a
/// call may return a new item before an older one is listed.
///
/// `settle` is the longest time after which an item that may count as older than another one is still missing
/// from `list`. It is the sum of
///
/// - the resolution of creation times, such as one second,
/// - the difference between the clocks of the storage's servers, and
/// - the delay until a created item is listed.
///
/// The call waits for `settle` after it has created an item, and after it has found one that is not much
/// older, so that it sees every item that may win. With a `settle` that is too short, two calls at the same
/// time may return different items, and one of them deletes the item of the other.
///
/// A request whose response is lost, and which the storage executes after a later call has returned, leaves
/// an item behind. A [lease](crate::lease) that outlives the time limit of the request keeps such a later
/// call back.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::{
///     Owner, ReclaimPolicy, Result, http::{Method, Request, Response},
///     idempotent::{self, Candidate, ExistingComparison}, mock,
/// };
///
/// fn create(name: &str, owner: &Owner, bytes: u64) -> Result<String> {
///     let settle = Duration::from_secs(2);
///     // An item of the same name may belong to another cluster.
///     let tag = format!("{}/{name}", owner.cluster_id);
///     let found = idempotent::oldest_wins(
///         settle,
///         || {
///             let response = Request::get("http://cloud/volumes").query("tag", &tag).send()?;
///             let found: Vec<(String, u64, u64)> = response.ok_or(|_| None)?.json()?;
///             let candidate = |(id, created_ms, bytes): (String, u64, u64)| {
///                 Candidate::new(id.clone(), Duration::from_millis(created_ms), (id, bytes))
///             };
///             Ok(found.into_iter().map(candidate).collect())
///         },
///         |(_, found)| ExistingComparison::new("volume", name).equal("size", found, &bytes).check(),
///         || {
///             let request = Request::post("http://cloud/volumes").json(&(&tag, bytes))?;
///             request.send()?.ok_or(|_| None)?.json()
///         },
///         |candidate| {
///             let response = Request::delete(format!("http://cloud/volumes/{}", candidate.id)).send()?;
///             if response.status == 404 { Ok(()) } else { response.ok_or(|_| None).map(|_| ()) }
///         },
///     )?;
///     Ok(found.0)
/// }
///
/// // Another process creates a volume of the same name in the same second, with a lower id.
/// let mut lists = 0;
/// let host = mock::MockHost::new()
///     .on(Method::Get, "http://cloud/", move |_| {
///         lists += 1;
///         let both = r#"[["vol-2", 1767268800000, 8], ["vol-1", 1767268800000, 8]]"#;
///         Ok(Response::new(200).with_body(if lists == 1 { "[]" } else { both }))
///     })
///     .on(Method::Post, "http://cloud/", |_| Ok(Response::new(201).with_body("\"vol-2\"")))
///     .on(Method::Delete, "http://cloud/volumes/vol-2", |_| Ok(Response::new(204)))
///     .install();
/// let owner = Owner {
///     cluster_id: "cluster-1".to_owned(),
///     claim_uid: "1".to_owned(),
///     pv_name: "pvc-1".to_owned(),
///     reclaim_policy: ReclaimPolicy::Delete,
/// };
/// assert_eq!(create("pvc-1", &owner, 8).unwrap(), "vol-1");
/// assert_eq!(host.requests()[0].url, "http://cloud/volumes?tag=cluster-1%2Fpvc-1");
/// assert_eq!(host.requests().last().unwrap().url, "http://cloud/volumes/vol-2");
/// ```
///
/// # Errors
///
/// - The errors of the functions. An error that may leave an item behind is never final: one of `list` that
///   does not tell which items exist (such as `unavailable` or `permission-denied`), one after `create` has
///   succeeded, and one of `delete`. After a final error of `create`, the items are listed again. If there is
///   one, a `create` of an earlier call whose response was lost has made it, and it is returned.
/// - [`in_progress`](StorageError::in_progress) if the created item is not listed after `settle`.
///
/// An error of `check` is returned after all other items are deleted, so it is final if `check` made it so.
pub fn oldest_wins<T>(
    settle: Duration,
    mut list: impl FnMut() -> Result<Vec<Candidate<T>>>,
    check: impl FnOnce(&T) -> Result<()>,
    create: impl FnOnce() -> Result<String>,
    mut delete: impl FnMut(&Candidate<T>) -> Result<()>,
) -> Result<T> {
    let found = list().map_err(StorageError::not_final_without_answer)?;
    let candidates = if found.is_empty() {
        create_and_list(settle, &mut list, create)?
    } else {
        list_settled(settle, found, &mut list)?
    };
    let mut candidates = candidates.into_iter();
    let Some(mut oldest) = candidates.next() else {
        return Err(StorageError::in_progress("the items of the name are being deleted"));
    };
    for candidate in candidates {
        let younger = if order(&candidate) < order(&oldest) {
            std::mem::replace(&mut oldest, candidate)
        } else {
            candidate
        };
        delete(&younger).map_err(StorageError::after_change)?;
    }
    check(&oldest.item).map(|()| oldest.item)
}

/// Returns the items that were found, or all items after `settle` if an older one may not be listed yet.
fn list_settled<T>(
    settle: Duration,
    found: Vec<Candidate<T>>,
    list: impl FnOnce() -> Result<Vec<Candidate<T>>>,
) -> Result<Vec<Candidate<T>>> {
    if found.iter().any(|candidate| is_settled(candidate.created_at, settle)) {
        return Ok(found);
    }
    poll::sleep(settle);
    list().map_err(StorageError::after_change)
}

/// Creates an item and returns all items of the name. There is none only if other calls delete them.
fn create_and_list<T>(
    settle: Duration,
    mut list: impl FnMut() -> Result<Vec<Candidate<T>>>,
    create: impl FnOnce() -> Result<String>,
) -> Result<Vec<Candidate<T>>> {
    let created = create().map_err(StorageError::final_unless_changed);
    if let Err(error) = &created
        && error.finality != Finality::Final
    {
        // The storage may still create the item, so the caller repeats the call.
        return created.map(|_| Vec::new());
    }
    poll::sleep(settle);
    let found = list().map_err(StorageError::after_change)?;
    match created {
        Ok(id) if found.iter().any(|candidate| candidate.id == id) => Ok(found),
        // Either the listing is late, or a call that found an older item has deleted this one.
        Ok(id) => Err(StorageError::in_progress(format!("the created item {id:?} is not listed"))),
        Err(error) if found.is_empty() => Err(error),
        // Other calls have created the items, perhaps after the refusal. An older one may not be listed yet.
        Err(_) => list_settled(settle, found, list),
    }
}

/// Returns true if every item that is older than one of this age is listed.
fn is_settled(created_at: Duration, settle: Duration) -> bool {
    let age = ambient::now().saturating_sub(created_at);
    age >= settle.saturating_add(MAX_CLOCK_DIFFERENCE)
}

fn order<T>(candidate: &Candidate<T>) -> (Duration, &str) {
    (candidate.created_at, &candidate.id)
}

#[cfg(test)]
#[path = "oldest_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "oldest_simulation_tests.rs"]
mod simulation_tests;
