//! Every lie has a test.

use cofferdam_domain::{DriverName, VolumeHandle, storage::Placement};

use super::*;

fn volume() -> CreatedVolume {
    CreatedVolume {
        handle: VolumeHandle::new("v"),
        capacity: Some(10),
        context: Parameters::new(),
        topology: Vec::new(),
        attachment: None,
    }
}

fn refused(change: impl FnOnce(&mut CreatedVolume), expected: &str) {
    let mut volume = volume();
    change(&mut volume);
    let error = created(&volume).unwrap_err();
    assert!(error.contains(expected) && !error.contains('\n'), "{error}");
}

fn pairs(key: &str, value: &str) -> BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

#[test]
fn volumes() {
    assert_eq!(created(&volume()), Ok(()));
    refused(|volume| volume.handle = VolumeHandle::new(""), "has 0 bytes");
    refused(|volume| volume.handle = VolumeHandle::new("é".repeat(65)), "has 130 bytes");
    refused(|volume| volume.handle = VolumeHandle::new("a\nb"), "control characters");
    refused(|volume| volume.handle = VolumeHandle::new(format!("csi-{}", "0f".repeat(32))), "inline volume");
    refused(|volume| volume.context = pairs("k", &"v".repeat(4096)), "4097 bytes");
    refused(|volume| volume.context = pairs("", "v"), "key of 0 bytes");
    refused(|volume| volume.context = pairs("cofferdam.dev/attachment", "{}"), "are the host's");
    refused(|volume| volume.topology = vec![pairs("a b", "v")], "not a label's key");
    refused(|volume| volume.topology = vec![pairs("example.com/zone", "a/b")], "not a label's value");
    refused(|volume| volume.topology = vec![Segments::new()], "has 0 keys");
    refused(|volume| volume.topology = vec![pairs("k", "v"); 1025], "1025 places");
    let attachment =
        |kind: &str| AttachmentRecord { kind: kind.to_owned(), version: 1, fields: Parameters::new() };
    refused(|volume| volume.attachment = Some(attachment("Dir")), "kind is \"Dir\"");
    for bytes in [0, u64::MAX] {
        assert!(created(&CreatedVolume { capacity: Some(bytes), ..volume() }).is_err());
    }
    assert_eq!(created(&CreatedVolume { capacity: None, ..volume() }), Ok(()));
}

#[test]
fn what_can_be_stored_is_more_than_what_csi_allows() {
    let found = |handle: usize, value: usize| CreatedVolume {
        handle: VolumeHandle::new("v".repeat(handle)),
        context: pairs("k", &"v".repeat(value)),
        ..volume()
    };
    for (bounds, id, map) in [(Bounds::SPECIFIED, 128, 4_096), (Bounds::STORABLE, 4_096, 262_144)] {
        assert_eq!(bounds.created(&found(id, map - 1)), Ok(()));
        assert!(bounds.created(&found(id + 1, 0)).unwrap_err().contains("the volume handle has"));
        assert!(bounds.created(&found(1, map)).unwrap_err().contains("the context has"));
    }
}

#[test]
fn a_handle_like_an_inline_one_is_not_one() {
    for name in ["csi-", &format!("csi-{}", "0f".repeat(31)), &format!("csi-{}", "0g".repeat(32))] {
        assert_eq!(Bounds::SPECIFIED.handle(name), Ok(()));
    }
}

#[test]
fn descriptions() {
    let describe = |name: &str| Description {
        name: DriverName::new(name),
        version: "1".to_owned(),
        topology_keys: vec!["topology.example.com/zone".to_owned()],
        placement: Placement::Central,
        volumes_per_node: None,
        features: vec!["single-node-multi-writer".to_owned()],
    };
    for name in ["a", "memory.cofferdam.dev", "a-b.c1", &"a".repeat(63)] {
        assert_eq!(description(&describe(name)), Ok(()), "{name}");
    }
    for name in ["", ".", "a.", "-a", "a-.b", "A.b", "a_b", "a b", "ä", "a\nb", &"a".repeat(64)] {
        let error = description(&describe(name)).unwrap_err();
        assert!(error.contains("expected a DNS subdomain") && !error.contains('\n'), "{error}");
    }
    let odd = Description { version: "1\n2".to_owned(), ..describe("a") };
    assert_eq!(description(&odd), Err("the version \"1 2\" has control characters".to_owned()));
    let mut twice = describe("a");
    twice.features = vec!["x".to_owned(), "x".to_owned()];
    assert_eq!(description(&twice), Err("the feature \"x\" is given twice".to_owned()));
    let mut many = describe("a");
    many.topology_keys = (0..65).map(|number| format!("k{number}")).collect();
    assert!(description(&many).unwrap_err().starts_with("65 of topology keys"));
}

#[test]
fn a_key_occurs_once() {
    let pairs = |keys: [&str; 2]| keys.map(|key| (key.to_owned(), String::new())).to_vec();
    assert_eq!(map("the context", pairs(["a", "b"])).unwrap().len(), 2);
    assert_eq!(map("the context", pairs(["a", "a"])), Err("the context has the key \"a\" twice".to_owned()));
}
