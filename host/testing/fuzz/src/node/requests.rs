//! Mount flags and secrets of requests.

use cofferdam_domain::storage::Secret;
use cofferdam_node::{AccessTimes, CephUser, MountOptions, NodeError, RbdFields, RbdImage, fuzzing};

use crate::message::assert_printable;

/// Options that would mount other storage, or give up what the node relies on.
const FORBIDDEN_OPTIONS: [&str; 12] = [
    "source",
    "addr",
    "mountaddr",
    "port",
    "mountport",
    "proto",
    "vers",
    "size",
    "suid",
    "dev",
    "journal_dev",
    "logdev",
];

/// A filesystem, and a mount flag in each further line.
pub(super) fn mount_flags(content: &[u8]) {
    let text = String::from_utf8_lossy(content);
    let mut lines = text.split('\n');
    let filesystem = lines.next().unwrap_or_default();
    let flags: Vec<String> = lines.map(str::to_owned).collect();
    match fuzzing::mount_options(filesystem, &flags) {
        Ok(options) => {
            assert!(options.attributes.no_suid && options.attributes.no_devices, "{options:?}");
            for (name, value) in &options.data {
                assert!(!FORBIDDEN_OPTIONS.contains(&name.as_str()), "{name}");
                let value = value.as_deref().unwrap_or("-");
                assert!(!value.is_empty() && !value.contains(char::is_control), "{name}={value:?}");
                assert_ne!((name.as_str(), value), ("errors", "panic"));
            }
            assert_eq!(fuzzing::mount_options(filesystem, &to_flags(&options)), Ok(options));
        }
        Err(error) => {
            assert!(matches!(error, NodeError::Denied(_)), "{error}");
            assert_printable(&error.to_string(), 800);
        }
    }
}

fn to_flags(options: &MountOptions) -> Vec<String> {
    let attributes = options.attributes;
    let attributes = [(attributes.read_only, "ro"), (attributes.no_exec, "noexec")];
    let attributes = attributes.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned());
    let access_times = options.access_times.map(|access_times| match access_times {
        AccessTimes::Never => "noatime".to_owned(),
        AccessTimes::Relative => "relatime".to_owned(),
        AccessTimes::Strict => "strictatime".to_owned(),
    });
    let data = options.data.iter().map(|(name, value)| match value {
        None => name.clone(),
        // A label may have commas.
        Some(value) if name == "context" => format!("{name}=\"{value}\""),
        Some(value) => format!("{name}={value}"),
    });
    attributes.chain(access_times).chain(data).collect()
}

/// The name of a user, and a key.
pub(super) fn ceph_user(content: &[u8]) {
    let text = String::from_utf8_lossy(content);
    let (name, key) = text.split_once('\n').unwrap_or((&text, ""));
    let secrets = [("userID", name), ("userKey", key)];
    let secrets = secrets.map(|(name, text)| (name.to_owned(), Secret::new(text))).into_iter().collect();
    match CephUser::from_secrets(&secrets) {
        Ok(user) => {
            assert_eq!(user.name, name);
            assert!(user.decoded_key().is_ok_and(|key| !key.is_empty()));
            check_command(&user);
        }
        Err(error) => assert_printable(&error.to_string(), 120),
    }
}

/// The kernel divides the command at blanks, and its options at commas.
fn check_command(user: &CephUser) {
    let fields = RbdFields {
        monitors: "10.0.0.3:6789",
        cluster_fsid: "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10",
        pool: "p",
        namespace: Some("ns"),
        image: "i",
        image_id: "1",
    };
    let Ok(image) = RbdImage::parse(fields) else { return };
    let command = fuzzing::rbd_command(&image, user, "cofferdam-0");
    let words: Vec<&str> = command.split([' ', '\t', '\n', '\0']).collect();
    assert!(matches!(words.as_slice(), ["10.0.0.3:6789", _, "p", "i", "-"]), "{command:?}");
    let options = words.get(1).into_iter().flat_map(|options| options.split(','));
    let names = options.map(|option| option.split_once('=').map(|(name, _)| name));
    assert!(names.eq(["name", "key", "mount_timeout", "_pool_ns"].map(Some)), "{command:?}");
}
