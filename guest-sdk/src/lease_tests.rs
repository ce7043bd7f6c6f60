//! Tests of leases on a mock host: exclusion, expiry, the outcome that keeps a lease, and finality.

use super::*;
use crate::{ErrorKind, mock::MockHost, state::HostStore};

const TTL: Duration = Duration::from_secs(10);

fn take() -> Result<Lease<'static, HostStore>> {
    acquire(&HostStore, "lease/v", TTL)
}

fn with<T>(run: impl FnOnce(&mut Lease<'_, HostStore>) -> Result<T>) -> Result<T> {
    with_lease(&HostStore, "lease/v", TTL, run)
}

#[test]
fn one_of_two_calls_at_once_has_the_lease() {
    let host = MockHost::new().install();
    let inner = with(|_| {
        host.advance(Duration::from_secs(1));
        Ok(with(|_| Ok(())).unwrap_err())
    });
    let inner = inner.unwrap();
    assert_eq!((inner.kind, inner.finality), (ErrorKind::Aborted, Finality::InProgress));
    assert_eq!(inner.retry_after_ms, Some(9000));
    assert_eq!(with(|_| Ok(7)), Ok(7), "the first call has released it");
}

#[test]
fn a_call_that_loses_the_race_for_the_entry_is_in_progress() {
    let host = MockHost::new().install();
    host.before_each_commit(|host| host.write_state("lease/v", br#"{"expiresAtMs": 0}"#));
    assert_eq!(take().unwrap_err().finality, Finality::InProgress);
    host.clear_before_each_commit();
    assert!(take().is_ok(), "what the other one wrote has expired");
}

#[test]
fn a_lease_is_released_unless_the_outcome_is_unknown() {
    let host = MockHost::new().install();
    for error in [StorageError::resource_exhausted("full"), StorageError::in_progress("at work")] {
        assert_eq!(with(|_| Err::<(), _>(error.clone())), Err(error));
        assert_eq!(host.state_keys(), [""; 0]);
    }
    let lost = StorageError::unavailable("no response");
    assert_eq!(with(|_| Err::<(), _>(lost.clone())), Err(lost));
    assert_eq!(host.state_keys(), ["lease/v"]);
    host.advance(TTL - Duration::from_millis(1));
    assert_eq!(take().unwrap_err().retry_after_ms, Some(1));
    host.advance(Duration::from_millis(1));
    assert_eq!(with(|_| Ok(7)), Ok(7));
}

#[test]
fn a_call_that_died_with_the_lease_blocks_it_until_it_expires() {
    let host = MockHost::new().install();
    let died = take().unwrap();
    assert!(take().is_err());
    host.advance(TTL);
    let mut successor = take().unwrap();
    // The call was only slow.
    assert_eq!(died.remaining(), Duration::ZERO);
    died.release().unwrap();
    assert!(take().is_err(), "the successor has the lease");
    successor.renew(TTL).unwrap();
    successor.release().unwrap();
    assert_eq!(host.state_keys(), [""; 0]);
}

#[test]
fn a_lease_that_was_taken_over_cannot_be_renewed() {
    let host = MockHost::new().install();
    let mut first = take().unwrap();
    host.advance(TTL);
    first.renew(TTL).unwrap();
    assert!(take().is_err(), "renewed after its expiry, before another call came");
    host.advance(TTL);
    let _second = take().unwrap();
    let error = first.renew(TTL).unwrap_err();
    assert_eq!((error.finality, first.remaining()), (Finality::InProgress, Duration::ZERO));
}

#[test]
fn a_lease_is_no_change() {
    let host = MockHost::new().install();
    host.call(|| {
        let refused = with(|lease| {
            lease.renew(TTL)?;
            Err::<(), _>(StorageError::failed_precondition("no").final_unless_changed())
        });
        assert_eq!(refused.unwrap_err().finality, Finality::Final);
        assert!(!crate::has_changed());
    });
}

#[test]
fn a_release_that_fails_keeps_the_result() {
    let host = MockHost::new().install();
    let result = with(|_| {
        host.fail_after(0);
        Ok(7)
    });
    assert_eq!(result, Ok(7));
    assert_eq!(take().unwrap_err().kind, ErrorKind::Unavailable);
    host.stop_failing();
    assert_eq!(take().unwrap_err().finality, Finality::InProgress);
}

#[test]
fn a_lease_written_while_the_clock_was_ahead_blocks_nobody() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let host = MockHost::new().start_time(1_767_268_800_000).install();
    let expiry = |ahead: Duration| (ambient::now() + ahead).as_millis();
    let stored = format!(r#"{{"expiresAtMs": {}, "ttlMs": 10000}}"#, expiry(YEAR));
    host.write_state("lease/v", stored.as_bytes());
    take().unwrap().release().unwrap();
    let stored = format!(r#"{{"expiresAtMs": {}, "ttlMs": 10000}}"#, expiry(TTL));
    host.write_state("lease/v", stored.as_bytes());
    assert_eq!(take().unwrap_err().retry_after_ms, Some(10_000), "the lease was just taken");
}

#[test]
fn a_lease_stores_its_ttl() {
    let host = MockHost::new().install();
    let stored = || state::read::<StoredLease>(&HostStore, "lease/v").unwrap().unwrap().value.ttl_ms;
    let mut lease = take().unwrap();
    assert_eq!(stored(), Some(10_000));
    lease.renew(2 * TTL).unwrap();
    assert_eq!(stored(), Some(20_000));
    // A lease of an earlier version of the SDK has no ttl.
    let stored = format!(r#"{{"expiresAtMs": {}}}"#, (ambient::now() + TTL).as_millis());
    host.write_state("lease/v", stored.as_bytes());
    assert_eq!(take().unwrap_err().retry_after_ms, Some(10_000));
}
