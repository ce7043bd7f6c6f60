//! Images of Ceph RBD: the fields of kind `rbd`, the user, the rules of the policy, and decisions about
//! mapped devices.

mod devices;
mod rule;
mod user;

use std::{collections::BTreeMap, fmt, net::SocketAddr};

pub use devices::RbdDevice;
pub(crate) use devices::{key_name, removable_devices, select_device, wrong_device};
pub use rule::{RbdRule, RbdRuleError};
pub use user::{CephUser, InvalidUser};

use crate::{
    network::parse_endpoints,
    nvme::{parse_uuid, uuid_text},
};

/// Port of monitors with version 1 of the messenger protocol.
const V1_PORT: u16 = 6789;
/// Port of monitors with version 2 of the messenger protocol.
const V2_PORT: u16 = 3300;
/// Maximum number of monitors of a volume.
const MAX_MONITORS: usize = 16;
/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Maximum length of an image's id in bytes: the kernel's limit.
const MAX_IMAGE_ID_BYTES: usize = 64;

/// Returns true for a name that the kernel's command of a mapping can contain: visible ASCII without the
/// separators of the command, its options, and Ceph's specifications of images.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"/@,=\"'\\".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// An invalid field of kind `rbd`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImage {
    /// The monitors are invalid.
    #[error(
        "the monitors are {monitors:?}: expected 1 to {MAX_MONITORS} different addresses such as \
         10.0.0.5:6789 or [fd00::5]:3300, separated by commas; all of them with port {V2_PORT}, or none"
    )]
    Monitors {
        /// The value.
        monitors: String,
    },
    /// The fsid is invalid.
    #[error("the cluster's fsid is {fsid:?}: expected a UUID")]
    Fsid {
        /// The value.
        fsid: String,
    },
    /// A name is invalid.
    #[error(
        "the {field} is {name:?}: expected 1 to {MAX_NAME_BYTES} visible ASCII characters, and none of \
         / @ , = \" ' \\"
    )]
    Name {
        /// The field.
        field: &'static str,
        /// The value.
        name: String,
    },
    /// The id of the image is invalid.
    #[error("the image's id is {id:?}: expected 1 to {MAX_IMAGE_ID_BYTES} letters and digits")]
    ImageId {
        /// The value.
        id: String,
    },
}

/// The fields of connection info.
#[derive(Clone, Copy, Debug)]
pub struct RbdFields<'a> {
    /// Addresses of monitors, separated by commas.
    pub monitors: &'a str,
    /// The cluster's fsid.
    pub cluster_fsid: &'a str,
    /// The pool.
    pub pool: &'a str,
    /// The namespace in the pool; absent for the default one.
    pub namespace: Option<&'a str>,
    /// The image's name.
    pub image: &'a str,
    /// The image's id, which no later image has.
    pub image_id: &'a str,
}

/// An image of a Ceph cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdImage {
    /// Addresses of monitors, at least one. IPv4 in IPv6 notation has become IPv4.
    pub monitors: Vec<SocketAddr>,
    /// The cluster's fsid, as a UUID in lower case.
    pub cluster_fsid: String,
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the default one.
    pub namespace: String,
    /// The image's name.
    pub image: String,
    /// The image's id.
    pub image_id: String,
}

impl RbdImage {
    /// Parses the fields.
    ///
    /// # Errors
    /// [`InvalidImage`]
    pub fn parse(fields: RbdFields<'_>) -> Result<Self, InvalidImage> {
        let name = |field, name: &str| {
            if is_name(name) {
                Ok(name.to_owned())
            } else {
                Err(InvalidImage::Name { field, name: name.to_owned() })
            }
        };
        let id = fields.image_id;
        let is_id = (1..=MAX_IMAGE_ID_BYTES).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id {
            return Err(InvalidImage::ImageId { id: id.to_owned() });
        }
        let monitors = parse_endpoints(fields.monitors, V1_PORT, MAX_MONITORS)
            .filter(|monitors| has_one_protocol(monitors));
        let monitors =
            monitors.ok_or_else(|| InvalidImage::Monitors { monitors: fields.monitors.to_owned() })?;
        Ok(Self {
            monitors,
            cluster_fsid: parse_fsid(fields.cluster_fsid)
                .ok_or_else(|| InvalidImage::Fsid { fsid: fields.cluster_fsid.to_owned() })?,
            pool: name("pool", fields.pool)?,
            namespace: fields
                .namespace
                .map_or(Ok(String::new()), |namespace| name("namespace", namespace))?,
            image: name("image", fields.image)?,
            image_id: id.to_owned(),
        })
    }

    /// Returns the fields in their only spelling.
    pub fn fields(&self) -> BTreeMap<String, String> {
        let mut fields = vec![
            ("monitors", self.monitor_list()),
            ("cluster-fsid", self.cluster_fsid.clone()),
            ("pool", self.pool.clone()),
            ("image", self.image.clone()),
            ("image-id", self.image_id.clone()),
        ];
        if !self.namespace.is_empty() {
            fields.push(("namespace", self.namespace.clone()));
        }
        fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
    }

    /// Returns the monitors as the kernel reads and shows them.
    pub(crate) fn monitor_list(&self) -> String {
        self.monitors.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// Returns the pool, and the namespace unless it is the default one.
    pub(crate) fn pool_and_namespace(&self) -> String {
        if self.namespace.is_empty() {
            self.pool.clone()
        } else {
            format!("{}/{}", self.pool, self.namespace)
        }
    }

    /// Returns true if the monitors speak version 2 of the messenger protocol.
    pub(crate) fn is_messenger_v2(&self) -> bool {
        self.monitors.iter().all(|monitor| monitor.port() == V2_PORT)
    }

    /// Returns true if both are the same image, by its id or its name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.cluster_fsid, &self.pool, &self.namespace)
            == (&other.cluster_fsid, &other.pool, &other.namespace)
            && (self.image_id == other.image_id || self.image == other.image)
    }
}

impl fmt::Display for RbdImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the image {}/{} with id {} of the Ceph cluster {}",
            self.pool_and_namespace(),
            self.image,
            self.image_id,
            self.cluster_fsid
        )
    }
}

/// Returns true if all monitors have the port of the messenger's version 2, or none has it.
fn has_one_protocol(monitors: &[SocketAddr]) -> bool {
    let v2 = monitors.iter().filter(|monitor| monitor.port() == V2_PORT).count();
    v2 == 0 || v2 == monitors.len()
}

/// Parses an fsid to its spelling in sysfs.
fn parse_fsid(text: &str) -> Option<String> {
    parse_uuid(text).map(uuid_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: RbdFields<'_> = RbdFields {
        monitors: "10.0.0.5",
        cluster_fsid: "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10",
        pool: "volumes",
        namespace: None,
        image: "pvc-1",
        image_id: "10226b8b4567",
    };

    #[test]
    fn monitors_have_one_spelling_and_one_protocol() {
        #[rustfmt::skip] // one row a case
        let table = [
            ("10.0.0.5",                         Some(("10.0.0.5:6789", false))),
            ("10.0.0.5:6789,[2001:DB8:0::5]",    Some(("10.0.0.5:6789,[2001:db8::5]:6789", false))),
            ("[::ffff:10.0.0.5]:3300",           Some(("10.0.0.5:3300", true))),
            ("10.0.0.5:3300,10.0.0.6:3300",      Some(("10.0.0.5:3300,10.0.0.6:3300", true))),
            ("10.0.0.5:3300,10.0.0.6",           None),
            ("10.0.0.5,10.0.0.5:6789",           None),
            ("mon:6789",                         None),
            ("10.0.0.5:6789 name=admin",         None),
            ("",                                 None),
        ];
        for (monitors, expected) in table {
            let image = RbdImage::parse(RbdFields { monitors, ..FIELDS });
            let found = image.as_ref().map(|image| (image.monitor_list(), image.is_messenger_v2()));
            let expected = expected.map(|(list, is_v2)| (list.to_owned(), is_v2));
            assert_eq!(found.ok(), expected, "{monitors}");
        }
    }

    #[test]
    fn names_are_no_parts_of_a_command() {
        let long = "a".repeat(256);
        for bad in ["", "a b", "a/b", "a@b", "a,ro", "a=b", "a\tb", "a\nb", "a\0", "\u{e4}", "a\"", &long] {
            let pool = RbdImage::parse(RbdFields { pool: bad, ..FIELDS }).unwrap_err();
            assert!(matches!(pool, InvalidImage::Name { field: "pool", .. }), "{bad:?}: {pool}");
            let image = RbdImage::parse(RbdFields { image: bad, ..FIELDS }).unwrap_err();
            assert!(matches!(image, InvalidImage::Name { field: "image", .. }), "{bad:?}: {image}");
            let namespace = RbdImage::parse(RbdFields { namespace: Some(bad), ..FIELDS }).unwrap_err();
            assert!(
                matches!(namespace, InvalidImage::Name { field: "namespace", .. }),
                "{bad:?}: {namespace}"
            );
            assert!(RbdImage::parse(RbdFields { image_id: bad, ..FIELDS }).is_err(), "{bad:?}");
            assert!(RbdImage::parse(RbdFields { cluster_fsid: bad, ..FIELDS }).is_err(), "{bad:?}");
        }
        let image =
            RbdImage::parse(RbdFields { pool: "k8s.volumes_1", namespace: Some("a-b"), ..FIELDS }).unwrap();
        assert_eq!(image.pool_and_namespace(), "k8s.volumes_1/a-b");
        let upper = FIELDS.cluster_fsid.to_uppercase();
        let upper = RbdImage::parse(RbdFields { cluster_fsid: &upper, ..FIELDS }).unwrap();
        assert_eq!(upper.cluster_fsid, FIELDS.cluster_fsid);
    }
}
