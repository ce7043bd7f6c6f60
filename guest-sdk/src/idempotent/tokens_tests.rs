//! Tests of creation tokens: a deleted item, two creators at once, lost responses, a late listing, and the
//! finality of errors.

use std::cell::{Cell, RefCell};

use super::*;
use crate::{ErrorKind, ambient, idempotent::ExistingComparison, mock::MockHost};

const SETTLE: Duration = Duration::from_secs(2);

/// An item of the cloud.
#[derive(Clone)]
struct Item {
    token: String,
    bytes: u64,
    created_at: Duration,
    deleted: bool,
}

/// A cloud that remembers tokens for ever and lists an item one second after its creation.
#[derive(Default)]
struct Cloud {
    items: RefCell<Vec<Item>>,
    next_error: RefCell<Option<StorageError>>,
    creations: Cell<u32>,
}

impl Cloud {
    fn find(&self) -> Result<Option<u64>> {
        let listed = |item: &&Item| !item.deleted && ambient::now().as_secs() > item.created_at.as_secs();
        Ok(self.items.borrow().iter().find(listed).map(|item| item.bytes))
    }

    fn create(&self, token: &str, bytes: u64) -> Result<TokenOutcome<u64>> {
        self.creations.set(self.creations.get() + 1);
        let known = self.items.borrow().iter().find(|item| item.token == token).cloned();
        match known {
            Some(item) if item.deleted || item.bytes != bytes => return Ok(TokenOutcome::UsedUp),
            Some(_) => {}
            None => self.items.borrow_mut().push(Item {
                token: token.to_owned(),
                bytes,
                created_at: ambient::now(),
                deleted: false,
            }),
        }
        self.next_error.take().map_or(Ok(TokenOutcome::Created(bytes)), Err)
    }

    fn call(&self, bytes: u64) -> Result<u64> {
        self.call_with(bytes, || {})
    }

    /// One call, with `between` before each creation.
    fn call_with(&self, bytes: u64, between: impl Fn()) -> Result<u64> {
        CreationTokens::new("volume", "v").settle(SETTLE).find_or_create(
            || self.find(),
            |found| ExistingComparison::new("volume", "v").equal("size", found, &bytes).check(),
            |token| {
                between();
                self.create(token, bytes)
            },
        )
    }

    fn delete(&self) {
        self.items.borrow_mut().iter_mut().for_each(|item| item.deleted = true);
    }

    fn existing(&self) -> usize {
        self.items.borrow().iter().filter(|item| !item.deleted).count()
    }
}

#[test]
fn a_name_can_be_created_again_after_a_deletion() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::default());
    for generation in 1..=3 {
        assert_eq!(cloud.call(8), Ok(8));
        assert_eq!(cloud.call(8), Ok(8), "the same call finds it");
        assert_eq!((cloud.items.borrow().len(), cloud.existing()), (generation, 1));
        cloud.delete();
    }
}

#[test]
fn two_creators_at_once_create_one_item() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::default());
    cloud.call(8).unwrap();
    cloud.delete();
    let first = cloud.call_with(8, || {
        // The second one is complete before each request of the first one.
        assert_eq!(cloud.call(8), Ok(8));
    });
    assert_eq!((first, cloud.existing()), (Ok(8), 1));
}

#[test]
fn a_lost_response_leaves_the_outcome_unknown_and_one_item() {
    let (host, cloud) = (MockHost::new().install(), Cloud::default());
    cloud.next_error.replace(Some(StorageError::unavailable("no response")));
    assert_eq!(host.call(|| cloud.call(8)).unwrap_err().finality, Finality::Unknown);
    assert_eq!((host.call(|| cloud.call(8)), cloud.items.borrow().len()), (Ok(8), 1));
}

#[test]
fn a_late_listing_is_not_taken_for_a_deletion() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::default());
    cloud.call(8).unwrap();
    // The item is not listed yet, and the token belongs to other arguments.
    let error = cloud.call(9).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
    assert_eq!((cloud.creations.get(), cloud.existing()), (2, 1));
}

#[test]
fn a_refusal_is_final_only_if_no_earlier_call_has_created_an_item() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::default());
    cloud.call(8).unwrap();
    let full = StorageError::resource_exhausted("quota");
    cloud.next_error.replace(Some(full.clone()));
    assert_eq!(cloud.call(8), Ok(8), "the item is listed in the meantime");
    let refused = CreationTokens::new("volume", "w").find_or_create(
        || Ok(None::<u64>),
        |_| Ok(()),
        |_| Err(full.clone()),
    );
    assert_eq!(refused, Err(full));
}

#[test]
fn an_item_returned_for_an_old_token_is_checked() {
    let _host = MockHost::new().install();
    let error = CreationTokens::new("volume", "v").find_or_create(
        || Ok(None),
        |found| ExistingComparison::new("volume", "v").equal("size", found, &8).check(),
        |_| Ok(TokenOutcome::Created(9)),
    );
    assert_eq!(error.unwrap_err().kind, ErrorKind::AlreadyExists);
}

#[test]
fn a_call_tries_a_bounded_number_of_tokens() {
    let _host = MockHost::new().install();
    let mut tokens = std::collections::BTreeSet::new();
    let error = CreationTokens::new("volume", "v").find_or_create(
        || Ok(None::<()>),
        |()| Ok(()),
        |token| {
            assert_eq!(token.len(), TOKEN_DIGITS);
            tokens.insert(token.to_owned());
            Ok(TokenOutcome::UsedUp)
        },
    );
    let error = error.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown));
    assert_eq!(tokens.len(), 16);
}

#[test]
fn a_lookup_without_an_answer_is_never_final() {
    let _host = MockHost::new().install();
    for lookup in [StorageError::unavailable("?").without_effect(), StorageError::unauthenticated("?")] {
        let error = CreationTokens::new("volume", "v").find_or_create(
            || Err(lookup.clone()),
            |()| Ok(()),
            |_| Ok(TokenOutcome::UsedUp),
        );
        assert_eq!(error.unwrap_err().finality, Finality::Unknown);
    }
}

#[test]
fn a_call_waits_once_however_many_tokens_are_used_up() {
    let (_host, cloud) = (MockHost::new().install(), Cloud::default());
    for _ in 0..5 {
        cloud.call(8).unwrap();
        cloud.delete();
    }
    let start = ambient::now();
    assert_eq!(cloud.call(8), Ok(8));
    assert_eq!((ambient::now() - start, cloud.existing()), (SETTLE, 1));

    // A refusal after a used-up token is no second wait either.
    cloud.delete();
    let start = ambient::now();
    let creations = Cell::new(0);
    let full = StorageError::resource_exhausted("quota");
    let refused = CreationTokens::new("volume", "v").settle(SETTLE).find_or_create(
        || Ok(None::<u64>),
        |_| Ok(()),
        |_| {
            creations.set(creations.get() + 1);
            if creations.get() < 3 { Ok(TokenOutcome::UsedUp) } else { Err(full.clone()) }
        },
    );
    assert_eq!((refused, ambient::now() - start), (Err(full), SETTLE));
}
