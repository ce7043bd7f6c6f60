//! Tests of creation without unique names on a cloud with coarse creation times and a late listing: two
//! creators at once, ties, a crash, lost responses, and the finality of every error.

use std::cell::{Cell, RefCell};

use super::*;
use crate::{ErrorKind, idempotent::ExistingComparison, mock::MockHost};

const SECOND: Duration = Duration::from_secs(1);
/// A listing is complete after the resolution of creation times and the delay of the listing.
const SETTLE: Duration = Duration::from_secs(2);

/// A cloud whose creation times have seconds, and which lists an item one second after its creation. Each id is
/// lower than the ones before, so a tie is won by the item that was created last.
struct Cloud {
    /// Id, time of creation, and size.
    items: RefCell<Vec<(String, Duration, u64)>>,
    created: Cell<u32>,
    /// An error of the next request of the kind, after its effect.
    next_create_error: RefCell<Option<StorageError>>,
    next_list_error: RefCell<Option<StorageError>>,
    next_delete_error: RefCell<Option<StorageError>>,
    /// Error of the next creation, which has no effect.
    refusal: RefCell<Option<StorageError>>,
}

impl Cloud {
    fn new() -> Self {
        Self {
            items: RefCell::default(),
            created: Cell::new(0),
            next_create_error: RefCell::default(),
            next_list_error: RefCell::default(),
            next_delete_error: RefCell::default(),
            refusal: RefCell::default(),
        }
    }

    fn list(&self) -> Result<Vec<Candidate<(String, u64)>>> {
        if let Some(error) = self.next_list_error.take() {
            return Err(error);
        }
        let listed = |at: Duration| ambient::now() >= at + SECOND;
        let items = self.items.borrow();
        let items = items.iter().filter(|(_, created_at, _)| listed(*created_at));
        let candidate = |(id, created_at, bytes): &(String, Duration, u64)| {
            Candidate::new(id.clone(), Duration::from_secs(created_at.as_secs()), (id.clone(), *bytes))
        };
        Ok(items.map(candidate).collect())
    }

    fn create(&self, bytes: u64) -> Result<String> {
        if let Some(error) = self.refusal.take() {
            return Err(error);
        }
        self.created.set(self.created.get() + 1);
        let id = format!("vol-{}", 9 - self.created.get());
        self.items.borrow_mut().push((id.clone(), ambient::now(), bytes));
        self.next_create_error.take().map_or(Ok(id), Err)
    }

    fn delete(&self, id: &str) -> Result<()> {
        if let Some(error) = self.next_delete_error.take() {
            return Err(error);
        }
        self.items.borrow_mut().retain(|(found, ..)| found != id);
        Ok(())
    }

    fn ids(&self) -> Vec<String> {
        self.items.borrow().iter().map(|(id, ..)| id.clone()).collect()
    }

    /// One call, with `between` between its creation and the effect of it.
    fn call_with(&self, bytes: u64, between: impl FnOnce()) -> Result<String> {
        let found = oldest_wins(
            SETTLE,
            || self.list(),
            |(_, found)| ExistingComparison::new("volume", "v").equal("size", found, &bytes).check(),
            || {
                between();
                self.create(bytes)
            },
            |candidate| self.delete(&candidate.id),
        );
        found.map(|(id, _)| id)
    }

    fn call(&self, bytes: u64) -> Result<String> {
        self.call_with(bytes, || {})
    }
}

fn id(number: u32) -> String {
    format!("vol-{number}")
}

#[test]
fn a_repeated_call_returns_the_same_item() {
    let (host, cloud) = (MockHost::new().install(), Cloud::new());
    assert_eq!(cloud.call(8), Ok(id(8)));
    assert_eq!(cloud.call(8), Ok(id(8)));
    host.advance(SETTLE + MAX_CLOCK_DIFFERENCE);
    let before = ambient::now();
    assert_eq!((cloud.call(8), cloud.ids()), (Ok(id(8)), vec![id(8)]));
    assert_eq!(ambient::now(), before, "an old item needs no second listing");
}

#[test]
fn of_two_creators_at_once_the_older_item_wins_in_both_calls() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::new());
    // The second creator runs completely after the first one has found nothing and before it creates.
    let second = RefCell::new(None);
    let first = cloud.call_with(8, || {
        second.replace(Some(cloud.call(8)));
    });
    let second = second.take().unwrap();
    assert_eq!((first, second), (Ok(id(8)), Ok(id(8))), "the item of the second creator is older");
    assert_eq!(cloud.ids(), [id(8)]);
}

#[test]
fn a_creation_in_the_same_second_wins_by_its_id_in_both_calls() {
    let (host, cloud) = (MockHost::new().install(), Cloud::new());
    // Both have found nothing and create in the same second. The other one decides first and deletes.
    cloud.create(8).unwrap();
    let other = cloud.call(8);
    assert_eq!((other, cloud.ids()), (Ok(id(7)), vec![id(7)]));
    // This is what the first creator does after its creation.
    poll::sleep(SETTLE);
    let error = create_and_list(SETTLE, || cloud.list(), || Ok(id(8))).unwrap_err();
    assert_eq!(error.finality, Finality::InProgress, "its item is deleted");
    assert_eq!(host.call(|| cloud.call(8)), Ok(id(7)));
}

#[test]
fn a_call_that_finds_an_item_waits_until_an_older_one_would_be_listed() {
    let (host, cloud) = (MockHost::new().install(), Cloud::new());
    cloud.create(8).unwrap();
    host.advance(Duration::from_millis(900));
    cloud.create(8).unwrap();
    // Only the first one is listed, but the second one wins the tie.
    host.advance(Duration::from_millis(200));
    assert_eq!(cloud.list().unwrap().len(), 1);
    assert_eq!((cloud.call(8), cloud.ids()), (Ok(id(7)), vec![id(7)]));
}

#[test]
fn a_call_after_a_crash_or_a_lost_response_finds_the_item() {
    let (host, cloud) = (MockHost::new().install(), Cloud::new());
    cloud.next_create_error.replace(Some(StorageError::unavailable("no response")));
    assert_eq!(host.call(|| cloud.call(8)).unwrap_err().finality, Finality::Unknown);
    // The listing does not show the item yet, so the next call creates another one.
    let found = host.call(|| cloud.call(8));
    assert_eq!((found, cloud.created.get(), cloud.ids()), (Ok(id(7)), 2, vec![id(7)]));
    // Here it does.
    let cloud = Cloud::new();
    cloud.create(8).unwrap();
    host.advance(SECOND);
    assert_eq!((cloud.call(8), cloud.created.get()), (Ok(id(8)), 1));
}

#[test]
fn a_refusal_is_final_only_if_no_earlier_call_has_created_an_item() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::new());
    let refusal = || Some(StorageError::resource_exhausted("quota"));
    cloud.refusal.replace(refusal());
    assert_eq!(cloud.call(8), Err(refusal().unwrap()));
    // The response of this creation was lost, and the item is not listed yet.
    cloud.create(8).unwrap();
    cloud.refusal.replace(refusal());
    assert_eq!(cloud.call(8), Ok(id(8)));

    let cloud = Cloud::new();
    cloud.refusal.replace(refusal());
    let hides_list = || {
        cloud.next_list_error.replace(Some(StorageError::not_found("?")));
    };
    let error = cloud.call_with(8, hides_list).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::NotFound, Finality::Unknown));
}

#[test]
fn no_error_after_a_creation_is_final() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::new());
    let fails = |kind: &RefCell<Option<StorageError>>| {
        kind.replace(Some(StorageError::permission_denied("x")));
    };
    let error = cloud.call_with(8, || fails(&cloud.next_list_error)).unwrap_err();
    assert_eq!(error.finality, Finality::Unknown);

    cloud.create(8).unwrap();
    fails(&cloud.next_delete_error);
    let error = cloud.call(8).unwrap_err();
    assert_eq!((error.finality, cloud.ids().len()), (Finality::Unknown, 2));
    assert_eq!((cloud.call(8), cloud.ids().len()), (Ok(id(8)), 1), "the next call deletes it");
}

#[test]
fn a_first_listing_without_an_answer_is_never_final() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::new());
    cloud.next_list_error.replace(Some(StorageError::unavailable("?").without_effect()));
    assert_eq!(cloud.call(8).unwrap_err().finality, Finality::Unknown);
    for refusal in [StorageError::unauthenticated("?"), StorageError::permission_denied("?")] {
        cloud.next_list_error.replace(Some(refusal));
        assert_eq!(cloud.call(8).unwrap_err().finality, Finality::Unknown);
    }
    cloud.next_list_error.replace(Some(StorageError::failed_precondition("no secret")));
    assert_eq!(cloud.call(8).unwrap_err().finality, Finality::Final);
    assert_eq!(cloud.created.get(), 0);
}

#[test]
fn an_item_with_other_arguments_is_an_error_after_the_own_item_is_deleted() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::new());
    // Another call with another size creates in the same second, and wins.
    let error = cloud
        .call_with(8, || {
            assert_eq!(cloud.call(9), Ok(id(8)));
        })
        .unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
    assert_eq!(cloud.ids(), [id(8)]);
}

#[test]
fn a_created_item_that_is_not_listed_in_time_leaves_the_call_in_progress() {
    let _host = MockHost::new().install();
    let error = oldest_wins(SETTLE, || Ok(vec![]), |_: &()| Ok(()), || Ok("vol-1".to_owned()), |_| Ok(()));
    assert_eq!(error.unwrap_err().finality, Finality::InProgress);
}

#[test]
fn after_a_refusal_a_call_waits_until_an_older_item_would_be_listed() {
    let (host, cloud) = (MockHost::new().install(), Cloud::new());
    let start = ambient::now();
    assert_eq!(start.subsec_millis(), 0);
    // Another process creates two items in the same second, after the refusal. The first one is listed when
    // this call lists again, but the second one wins the tie.
    for (number, millis) in [(8, 1200), (7, 1800)] {
        cloud.items.borrow_mut().push((id(number), start + Duration::from_millis(millis), 8));
    }
    host.advance(Duration::from_millis(500));
    cloud.refusal.replace(Some(StorageError::resource_exhausted("quota")));
    assert_eq!((cloud.call(8), cloud.ids()), (Ok(id(7)), vec![id(7)]));
}
