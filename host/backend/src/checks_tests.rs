//! Tests of the response checks.

use cofferdam_domain::{DriverName, storage::Placement};

use super::*;

fn created_volume(volume: &CreatedVolume) -> CheckResult {
    ResponseLimits::CSI_SPEC.check_created_volume(volume)
}

fn volume() -> CreatedVolume {
    CreatedVolume {
        handle: VolumeHandle::new("v"),
        capacity: Some(10),
        context: Parameters::new(),
        topology: Vec::new(),
        connection_info: None,
    }
}

fn assert_rejected(change: impl FnOnce(&mut CreatedVolume), expected: &str) {
    let mut volume = volume();
    change(&mut volume);
    let error = created_volume(&volume).unwrap_err().to_string();
    assert!(error.contains(expected) && !error.contains('\n'), "{error}");
}

fn pairs(key: &str, value: &str) -> BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

#[test]
fn invalid_volume_fields_are_rejected() {
    assert_eq!(created_volume(&volume()), Ok(()));
    assert_rejected(|volume| volume.handle = VolumeHandle::new(""), "has 0 bytes");
    assert_rejected(|volume| volume.handle = VolumeHandle::new("é".repeat(65)), "has 130 bytes");
    assert_rejected(|volume| volume.handle = VolumeHandle::new("a\nb"), "control characters");
    assert_rejected(
        |volume| volume.handle = VolumeHandle::new(format!("csi-{}", "0f".repeat(32))),
        "inline volume",
    );
    assert_rejected(|volume| volume.context = pairs("k", &"v".repeat(4096)), "4097 bytes");
    assert_rejected(|volume| volume.context = pairs("", "v"), "key of 0 bytes");
    assert_rejected(|volume| volume.context = pairs("cofferdam.dev/connection-info", "{}"), "are reserved");
    assert_rejected(|volume| volume.topology = vec![pairs("a b", "v")], "expected a label key");
    assert_rejected(
        |volume| volume.topology = vec![pairs("example.com/zone", "a/b")],
        "expected a label value",
    );
    assert_rejected(|volume| volume.topology = vec![Segments::new()], "has 0 keys");
    assert_rejected(|volume| volume.topology = vec![pairs("k", "v"); 1025], "1025 segments");
    let attachment =
        |kind: &str| ConnectionInfo { kind: kind.to_owned(), version: 1, fields: Parameters::new() };
    assert_rejected(|volume| volume.connection_info = Some(attachment("Dir")), "kind is \"Dir\"");
    for bytes in [0, u64::MAX] {
        assert!(created_volume(&CreatedVolume { capacity: Some(bytes), ..volume() }).is_err());
    }
    assert_eq!(created_volume(&CreatedVolume { capacity: None, ..volume() }), Ok(()));
}

#[test]
fn limits_for_csi_drivers_exceed_the_csi_spec() {
    let found = |handle: usize, value: usize| CreatedVolume {
        handle: VolumeHandle::new("v".repeat(handle)),
        context: pairs("k", &"v".repeat(value)),
        ..volume()
    };
    for (bounds, id, map) in
        [(ResponseLimits::CSI_SPEC, 128, 4_096), (ResponseLimits::KUBERNETES_API, 4_096, 262_144)]
    {
        assert_eq!(bounds.check_created_volume(&found(id, map - 1)), Ok(()));
        assert!(
            bounds
                .check_created_volume(&found(id + 1, 0))
                .unwrap_err()
                .to_string()
                .contains("the volume handle has")
        );
        assert!(
            bounds.check_created_volume(&found(1, map)).unwrap_err().to_string().contains("the context has")
        );
    }
}

#[test]
fn handles_resembling_inline_handles_are_accepted() {
    for name in ["csi-", &format!("csi-{}", "0f".repeat(31)), &format!("csi-{}", "0g".repeat(32))] {
        assert_eq!(ResponseLimits::CSI_SPEC.check_handle(name), Ok(()));
    }
}

#[test]
fn invalid_driver_descriptions_are_rejected() {
    let describe = |name: &str| Description {
        name: DriverName::new(name),
        version: "1".to_owned(),
        topology_keys: vec!["topology.example.com/zone".to_owned()],
        placement: Placement::Central,
        volumes_per_node: None,
        features: vec!["single-node-multi-writer".to_owned()],
    };
    for name in ["a", "memory.cofferdam.dev", "a-b.c1", &"a".repeat(63)] {
        assert_eq!(check_description(&describe(name)), Ok(()), "{name}");
    }
    for name in ["", ".", "a.", "-a", "a-.b", "A.b", "a_b", "a b", "ä", "a\nb", &"a".repeat(64)] {
        let error = check_description(&describe(name)).unwrap_err().to_string();
        assert!(error.contains("expected a DNS subdomain") && !error.contains('\n'), "{error}");
    }
    let odd = Description { version: "1\n2".to_owned(), ..describe("a") };
    assert_eq!(
        check_description(&odd).unwrap_err().to_string(),
        "the version \"1 2\" has control characters"
    );
    let none = Description { volumes_per_node: Some(0), ..describe("a") };
    assert_eq!(
        check_description(&none).unwrap_err().to_string(),
        "the maximum of a node is 0 volumes; expected 1 to 4294967295"
    );
    assert_eq!(check_description(&Description { volumes_per_node: Some(1), ..describe("a") }), Ok(()));
    let mut twice = describe("a");
    twice.features = vec!["x".to_owned(), "x".to_owned()];
    assert_eq!(check_description(&twice).unwrap_err().to_string(), "the feature \"x\" is given twice");
    let mut many = describe("a");
    many.topology_keys = (0..65).map(|number| format!("k{number}")).collect();
    assert!(
        check_description(&many).unwrap_err().to_string().starts_with("the description has 65 topology keys")
    );
}

#[test]
fn duplicate_map_keys_are_rejected() {
    let pairs = |keys: [&str; 2]| keys.map(|key| (key.to_owned(), String::new())).to_vec();
    assert_eq!(unique_map("the context", pairs(["a", "b"])).unwrap().len(), 2);
    assert_eq!(
        unique_map("the context", pairs(["a", "a"])),
        Err(ContractViolation::DuplicateKey { map: "the context", key: "a".to_owned() })
    );
}
