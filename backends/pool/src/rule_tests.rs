//! Tests of the rules of copies, listings, sizes, validation and error finality.

use super::*;

fn with_parameters(request: CreateRequest, parameters: &[(&str, &str)]) -> CreateRequest {
    let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    CreateRequest { parameters: parameters.collect(), ..request }
}

fn create_snapshot_with(
    fake: &FakeStorage,
    name: &str,
    source: &str,
    consistency: Option<&str>,
) -> Result<Snapshot> {
    let parameters = consistency.map(|value| ("consistency".to_owned(), value.to_owned()));
    snapshots::create(
        &fake.storage(),
        SnapshotRequest {
            name: name.to_owned(),
            source: source.to_owned(),
            parameters: parameters.into_iter().collect(),
            owner: None,
        },
    )
}

fn expand_to(
    fake: &FakeStorage,
    required_bytes: Option<u64>,
    limit_bytes: Option<u64>,
) -> Result<ExpandResponse> {
    let capacity = CapacityRange { required_bytes, limit_bytes };
    let request = ExpandRequest { handle: "vol-v".to_owned(), capacity, capability: None };
    volumes::expand(&fake.storage(), &request)
}

#[test]
fn images_are_copied_crash_consistent_unless_the_class_allows_none() {
    let fake = FakeStorage::new();
    fake.shares_blocks.set(false);
    create_volume(&fake, &request("i", 8_192, block()), None).unwrap();
    create_volume(&fake, &request("d", 8_192, filesystem()), None).unwrap();
    let of = |handle: &'static str| Some((RecordKind::Volume, handle));
    let plain = request("c", 8_192, block());
    let refused_copies = [
        create_snapshot_with(&fake, "s", "vol-i", None).map(drop),
        create_snapshot_with(&fake, "s", "vol-i", Some("crash")).map(drop),
        create_volume(&fake, &plain, of("vol-i")).map(drop),
        create_snapshot_with(&fake, "s", "vol-d", Some("crash")).map(drop),
        create_volume(
            &fake,
            &with_parameters(request("c", 8_192, filesystem()), &[("consistency", "crash")]),
            of("vol-d"),
        )
        .map(drop),
    ];
    for refused in refused_copies {
        let error = refused.unwrap_err();
        assert_eq!(
            (error.kind, error.finality),
            (ErrorKind::FailedPrecondition, Finality::Final),
            "{error:?}"
        );
        assert!(error.message.contains("\"consistency\" set to \"none\""), "{error:?}");
    }
    assert_eq!(fake.record_names(), ["vol-d", "vol-i"]);
    create_snapshot_with(&fake, "s", "vol-i", Some("none")).unwrap();
    create_snapshot_with(&fake, "t", "vol-d", None).unwrap();
    create_volume(&fake, &with_parameters(plain, &[("consistency", "none")]), of("vol-i")).unwrap();
    // A snapshot is never written, so its copy is always consistent, regardless of the class.
    let restored = with_parameters(request("r", 8_192, block()), &[("consistency", "crash")]);
    create_volume(&fake, &restored, Some((RecordKind::Snapshot, "snap-s"))).unwrap();
    assert_eq!(
        create_snapshot_with(&fake, "s", "vol-i", Some("crash")).unwrap_err().kind,
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        create_snapshot_with(&fake, "u", "vol-i", Some("app")).unwrap_err().kind,
        ErrorKind::InvalidArgument
    );
    fake.shares_blocks.set(true);
    create_snapshot_with(&fake, "w", "vol-i", None).unwrap();
    create_snapshot_with(&fake, "w", "vol-i", Some("none")).unwrap();
}

#[test]
fn an_unknown_pool_result_is_not_final() {
    let fake = FakeStorage::new();
    fake.unknown_results.set(true);
    let call = || create_volume(&fake, &request("v", 8_192, block()), None);
    let error = call().unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown), "{error:?}");
    assert_eq!(fake.record_names(), ["vol-v"], "the record goes on to speak for the item");
    fake.unknown_results.set(false);
    call().unwrap();
    fake.unknown_results.set(true);
    let error = volumes::delete(&fake.storage(), "vol-v").unwrap_err();
    assert_eq!(error.finality, Finality::Unknown);
    fake.unknown_results.set(false);
    volumes::delete(&fake.storage(), "vol-v").unwrap();
    assert_eq!(fake.record_names(), [""; 0]);
}

#[test]
fn an_existing_item_keeps_its_record_when_the_pool_fails() {
    let fake = FakeStorage::new();
    fake.calls_left.set(Some(4));
    create_volume(&fake, &request("v", 8_192, block()), None).unwrap_err();
    fake.calls_left.set(None);
    // The operator has lowered the limit since. The pool may check the size before the name.
    let answer = PoolError::InvalidSize("8192 bytes".to_owned());
    fake.next_error.replace(Some(answer));
    create_volume(&fake, &request("v", 8_192, block()), None).unwrap();
    assert_eq!(fake.record_names(), ["vol-v"]);
}

#[test]
fn incomplete_volumes_are_listed_with_their_owner() {
    let fake = FakeStorage::new();
    let owner = cofferdam_guest::Owner {
        cluster_id: "k".to_owned(),
        claim_uid: "c".to_owned(),
        pv_name: "p".to_owned(),
        reclaim_policy: cofferdam_guest::ReclaimPolicy::Delete,
    };
    let owned_request =
        |name: &str| CreateRequest { owner: Some(owner.clone()), ..request(name, 8_192, block()) };
    for name in ["gone", "ok"] {
        create_volume(&fake, &owned_request(name), None).unwrap();
    }
    create_snapshot(&fake, "s", "vol-ok").unwrap();
    let crash_after = |calls: u32, call: &dyn Fn()| {
        fake.calls_left.set(Some(calls));
        call();
        fake.calls_left.set(None);
    };
    crash_after(3, &|| drop(create_volume(&fake, &owned_request("half"), None).unwrap_err()));
    crash_after(2, &|| volumes::delete(&fake.storage(), "vol-gone").unwrap_err().message.clear());
    crash_after(5, &|| drop(create_snapshot(&fake, "half", "vol-ok").unwrap_err()));
    let page = volumes::list(&fake.storage(), &settings(), None, None).unwrap().volumes;
    let shown: Vec<_> = page
        .iter()
        .map(|status| {
            let condition = status.condition.as_ref().unwrap();
            let what = condition.message.split(':').next().unwrap();
            assert_eq!(status.owner.as_ref(), Some(&owner));
            assert_eq!(status.volume.connection_info.is_none(), condition.abnormal);
            assert_eq!(
                &volumes::get(&fake.storage(), &settings(), &status.volume.handle).unwrap(),
                status,
                "get returns what list returns"
            );
            (&*status.volume.handle, condition.abnormal, what)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("vol-gone", true, "being deleted"),
            ("vol-half", true, "incomplete"),
            ("vol-ok", false, "its item is in the pool")
        ]
    );
    let page = snapshots::list(&fake.storage(), None, None, None).unwrap().snapshots;
    let shown: Vec<_> = page.iter().map(|snapshot| (&*snapshot.handle, snapshot.ready)).collect();
    assert_eq!(shown, [("snap-half", false), ("snap-s", true)]);
    assert!(!snapshots::get(&fake.storage(), "snap-half".to_owned()).unwrap().ready);
    let missing = volumes::get(&fake.storage(), &settings(), "vol-none").unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
}

#[test]
fn an_unreadable_record_does_not_hide_other_volumes() {
    let fake = FakeStorage::new();
    for name in ["a", "b", "c"] {
        create_volume(&fake, &request(name, 8_192, block()), None).unwrap();
    }
    create_snapshot(&fake, "s", "vol-a").unwrap();
    let garbage = || (b"{".to_vec(), 1_000);
    fake.entries.borrow_mut().insert("volume/vol-b".to_owned(), garbage());
    fake.entries.borrow_mut().insert("snapshot/snap-r".to_owned(), garbage());
    let list = || {
        let page = volumes::list(&fake.storage(), &settings(), None, None).unwrap();
        let conditions = page.volumes.into_iter().map(|status| status.condition.unwrap());
        conditions.map(|condition| (condition.abnormal, condition.message)).collect::<Vec<_>>()
    };
    let message = |index: usize| list()[index].1.clone();
    assert_eq!(list().iter().map(|(abnormal, _)| *abnormal).collect::<Vec<_>>(), [false, true, false]);
    assert!(message(1).contains("is not readable"), "{}", message(1));
    fake.busy.set(true);
    assert_eq!(list()[0], (false, "an earlier call is still using its item".to_owned()));
    fake.busy.set(false);
    fake.fail_measure.set(true);
    assert_eq!(list()[0], (true, "its item cannot be read: the pool failed: a bad sector".to_owned()));
    assert_eq!(snapshots::list(&fake.storage(), None, None, None).unwrap().snapshots.len(), 1);
}

#[test]
fn a_volume_that_is_above_the_limit_does_not_shrink() {
    let fake = FakeStorage::new();
    create_volume(&fake, &request("v", 8_192, block()), None).unwrap();
    for (required, limit) in [(None, Some(8_191)), (Some(1), Some(4_096))] {
        let error = expand_to(&fake, required, limit).unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::OutOfRange, Finality::Final));
    }
    assert_eq!(expand_to(&fake, Some(1), Some(8_192)).unwrap().capacity_bytes, 8_192);
}

#[test]
fn an_expanded_image_is_copied_with_its_actual_size() {
    let fake = FakeStorage::new();
    create_volume(&fake, &request("v", 8_192, block()), None).unwrap();
    // The call dies after the image was expanded: record, measure, grow.
    fake.calls_left.set(Some(3));
    expand_to(&fake, Some(12_288), None).unwrap_err();
    fake.calls_left.set(None);
    assert_eq!((fake.image_size("vol-v"), fake.record("volume/vol-v").size), (Some(12_288), 8_192));
    let clone = |name: &str, required_bytes, limit_bytes| {
        let capacity = CapacityRange { required_bytes, limit_bytes };
        let create_request = CreateRequest { capacity, ..request(name, 1, block()) };
        create_volume(&fake, &create_request, Some((RecordKind::Volume, "vol-v")))
            .map(|volume| volume.capacity_bytes.unwrap())
    };
    assert_eq!(clone("c", None, None), Ok(12_288));
    // The recorded size of the volume.
    assert_eq!(clone("d", Some(8_192), None), Ok(12_288));
    assert_eq!(clone("d", Some(8_192), None), Ok(12_288), "again");
    for (required, limit) in [(8_192, Some(8_192)), (4_096, None)] {
        let error = clone("e", Some(required), limit).unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::OutOfRange, Finality::Final));
    }
    assert_eq!(create_snapshot(&fake, "s", "vol-v").unwrap().size_bytes, Some(12_288));
    assert_eq!(expand_to(&fake, Some(9_000), None).unwrap().capacity_bytes, 12_288);
    assert_eq!(fake.record("volume/vol-v").size, 12_288);
}

#[test]
fn a_snapshot_has_the_creation_time_of_its_copy() {
    let fake = FakeStorage::new();
    create_volume(&fake, &request("v", 8_192, block()), None).unwrap();
    for (name, calls, expected) in [("late", 5, 500), ("made", 6, 20)] {
        fake.now_ms.set(20);
        fake.calls_left.set(Some(calls));
        create_snapshot(&fake, name, "vol-v").unwrap_err();
        fake.calls_left.set(None);
        fake.now_ms.set(500);
        let snapshot = create_snapshot(&fake, name, "vol-v").unwrap();
        assert_eq!(snapshot.created_at_ms, expected, "{name}");
        assert_eq!(snapshots::get(&fake.storage(), snapshot.handle).unwrap().created_at_ms, expected);
    }
    // Another call is still copying, so its start time is kept.
    fake.now_ms.set(20);
    fake.calls_left.set(Some(5));
    create_snapshot(&fake, "busy", "vol-v").unwrap_err();
    fake.calls_left.set(None);
    fake.now_ms.set(500);
    fake.busy.set(true);
    assert_eq!(create_snapshot(&fake, "busy", "vol-v").unwrap_err().finality, Finality::InProgress);
    assert_eq!(fake.record("snapshot/snap-busy").changed_ms, 20);
}

#[test]
fn validate_rejects_what_create_rejects() {
    let fake = FakeStorage::new();
    create_volume(&fake, &with_parameters(request("v", 8_192, block()), &[("consistency", "none")]), None)
        .unwrap();
    let validate = |parameters: &[(&str, &str)], mutable: &[(&str, &str)]| {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let request = ValidateRequest {
            handle: "vol-v".to_owned(),
            context: Vec::new(),
            capabilities: vec![block()],
            parameters: pairs(parameters),
            mutable_parameters: pairs(mutable),
        };
        volumes::validate(&fake.storage(), request)
    };
    let confirmed = [&[][..], &[("kind", "image")], &[("consistency", "none")]];
    for parameters in confirmed {
        assert_eq!(validate(parameters, &[]), Ok(Validation::Confirmed), "{parameters:?}");
    }
    let refused = validate(&[("consistency", "crash")], &[]).unwrap();
    assert_eq!(
        refused,
        Validation::Refused("the volume's parameter \"consistency\" is not \"crash\"".to_owned())
    );
    for (parameters, mutable) in [
        (&[("tier", "gold")][..], &[][..]),
        (&[("kind", "tape")], &[]),
        (&[("kind", "directory")], &[]),
        (&[("consistency", "app")], &[]),
        (&[], &[("iops", "1")]),
    ] {
        let error = validate(parameters, mutable).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{parameters:?} {mutable:?}");
    }
}
