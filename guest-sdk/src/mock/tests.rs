//! Tests of the mock host: its installation for a thread, redaction in log lines, the clock and random bytes,
//! and the rules of its pool.

use super::*;
use crate::{
    ambient,
    bindings::cofferdam::storage::{
        pool::{CopyMode, ItemKind},
        types::Bound,
    },
    host::pool as items,
    log, secrets, settings,
};

#[test]
fn a_mock_host_is_installed_for_its_thread_until_dropped() {
    let outer = MockHost::new().setting("k", "outer").install();
    {
        let _inner = MockHost::new().setting("k", "inner").install();
        assert_eq!(settings::get("k").as_deref(), Some("inner"));
        std::thread::spawn(|| assert_eq!(settings::all().len(), 0)).join().unwrap();
    }
    assert_eq!(settings::get("k").as_deref(), Some("outer"));
    drop(outer);
    assert_eq!(settings::get("k"), None);
}

#[test]
fn secrets_are_redacted_from_log_lines() {
    let host = MockHost::new().secret("a", "hunter").secret("b", "hunter2").install();
    let secret = secrets::get("b").unwrap();
    log::write(Level::Warn, format!("it is {}", secret.reveal()), &[("again", &"hunter")]);
    let fields = vec![("again".to_owned(), REDACTED.to_owned())];
    assert_eq!(
        host.log_lines(),
        [LogLine { level: Level::Warn, message: "it is [secret]".to_owned(), fields }]
    );
    assert_eq!(
        (host.revealed(), secrets::names()),
        (vec!["b".to_owned()], vec!["a".to_owned(), "b".to_owned()])
    );
    assert!(!format!("{host:?}{secret:?}").contains("hunter"));
}

#[test]
fn time_and_random_bytes_are_deterministic() {
    let draw = |seed| {
        let host = MockHost::new().start_time(5).seed(seed).install();
        host.advance(Duration::from_millis(2));
        (ambient::now(), ambient::random::<20>())
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1).1, draw(2).1);
    assert_eq!(draw(1).0, Duration::from_millis(7));
    assert!(ambient::now() > Duration::from_secs(1_700_000_000), "also without a host");
}

#[test]
fn the_mock_pool_enforces_names_sizes_and_space() {
    let host = MockHost::new().pool_size(100).install();
    items::create_directory("d").unwrap();
    assert!(host.pool_write("d", "f", &[1; 60]) && !host.pool_write("x", "f", b""));
    assert_eq!(items::create_directory("d"), Err(PoolError::Exists("d".to_owned())));
    assert_eq!(items::create_directory("../x"), Err(PoolError::InvalidName("../x".to_owned())));
    assert_eq!(items::grow("d", 8192), Err(PoolError::WrongKind("d".to_owned())));
    assert!(matches!(items::grow("missing", 4097), Err(PoolError::InvalidSize(_))), "before the look");
    let full = Err(PoolError::NoSpace(Bound { limit: 40, given: 60 }));
    assert_eq!(items::copy("d", "e", None, CopyMode::NotAtomic), full);
    assert_eq!(items::copy("x", "d", None, CopyMode::NotAtomic), Err(PoolError::Exists("d".to_owned())));
    host.set_pool_busy("d", true);
    assert_eq!(items::remove("d"), Err(PoolError::Busy("d".to_owned())));
    host.set_pool_busy("d", false);
    items::remove("d").unwrap();
    assert_eq!(items::measure("d"), Err(PoolError::Missing("d".to_owned())));
    assert_eq!(host.pool_read("d", "f"), None);
    host.fail_after(0);
    assert_eq!(items::usage(), Err(PoolError::Failed(FAILED_ON_PURPOSE.to_owned())));
}

#[test]
fn images_count_with_their_full_size() {
    let host = MockHost::new().pool_size(40_960).install();
    let full = |limit, given| Err(PoolError::NoSpace(Bound { limit, given }));
    items::create_image("i", 8192).unwrap();
    assert_eq!(items::create_image("j", 40_960), full(32_768, 40_960));
    assert_eq!(items::grow("i", 45_056), full(32_768, 36_864));
    assert_eq!((items::grow("i", 12_288), items::grow("i", 4096)), (Ok(()), Ok(())));
    assert!(matches!(items::copy("i", "j", Some(4096), CopyMode::NotAtomic), Err(PoolError::InvalidSize(_))));
    items::copy("i", "j", Some(16_384), CopyMode::PointInTime).unwrap();
    let copied = items::measure("j").unwrap();
    assert_eq!((copied.kind, copied.size_bytes, copied.used_bytes), (ItemKind::Image, Some(16_384), 0));
    assert_eq!(items::usage().unwrap().available_bytes, 12_288);
    assert_eq!(items::copy("j", "k", None, CopyMode::NotAtomic), full(12_288, 16_384));
    let page = items::scan("", Some("i"), 1).unwrap();
    assert_eq!((page.items, page.more), (vec![("j".to_owned(), ItemKind::Image)], false));
    assert!(host.pool_write("i", "", &[1; 12_288]));
    items::remove("j").unwrap();
    assert_eq!(items::usage().unwrap().available_bytes, 28_672, "what is written is not counted twice");
}

#[test]
fn a_copy_locks_its_source_and_is_point_in_time_or_unsupported() {
    let host = MockHost::new().pool_without_sharing().install();
    items::create_image("i", 4096).unwrap();
    items::create_directory("d").unwrap();
    for source in ["i", "d"] {
        let result = items::copy(source, "c", None, CopyMode::PointInTime);
        assert!(matches!(result, Err(PoolError::Unsupported(_))), "{result:?}");
    }
    host.set_pool_copying("i", "c", true);
    let busy = |name: &str| Err(PoolError::Busy(name.to_owned()));
    assert_eq!((items::remove("i"), items::grow("i", 8192)), (busy("i"), busy("i")));
    assert_eq!(items::copy("i", "c", None, CopyMode::NotAtomic), busy("c"));
    assert!(items::measure("i").is_ok());
    items::copy("i", "another", None, CopyMode::NotAtomic).unwrap();
    host.set_pool_copying("i", "c", false);
    items::copy("i", "c", None, CopyMode::NotAtomic).unwrap();
    items::remove("i").unwrap();
}
