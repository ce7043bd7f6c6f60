//! Decisions about the kernel's devices of RBD images.

use cofferdam_domain::names;

use super::RbdImage;
use crate::block_device::Device;

/// The name of the image itself in the place of a snapshot.
const NO_SNAPSHOT: &str = "-";
/// Characters of the digest of a volume's handle in the name of its key. The kernel's command has a length limit.
const KEY_NAME_DIGITS: usize = 32;

/// Returns the name of the key in the command that maps a volume's image. The kernel shows the command, so the name
/// tells the mappings of this volume from those that others have made.
pub(crate) fn key_name(volume: &str) -> String {
    let digest = names::sha256_hex([volume]);
    format!("cofferdam-{}", digest.get(..KEY_NAME_DIGITS).unwrap_or(&digest))
}

/// A mapped image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdDevice {
    /// Number of the mapping.
    pub id: String,
    /// The device.
    pub device: Device,
    /// Size in bytes.
    pub size: u64,
    /// The monitors of the mapping's command.
    pub monitors: String,
    /// The name of the key in the mapping's command; absent if the command has the key itself, or none.
    pub key_name: Option<String>,
    /// The cluster's fsid.
    pub cluster_fsid: String,
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the default one.
    pub namespace: String,
    /// The image's name.
    pub image: String,
    /// The image's id.
    pub image_id: String,
    /// The snapshot; `-` for none.
    pub snapshot: String,
}

impl RbdDevice {
    /// Returns true if this is the same mapping, whatever its size.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Self { size: other.size, ..self.clone() } == *other
    }

    fn is_in_pool_of(&self, image: &RbdImage) -> bool {
        self.pool == image.pool && self.namespace == image.namespace && self.snapshot == NO_SNAPSHOT
    }

    /// Returns true if the device is this image.
    fn is_image(&self, image: &RbdImage) -> bool {
        self.is_in_pool_of(image)
            && self.cluster_fsid == image.cluster_fsid
            && self.image_id == image.image_id
    }

    /// Returns true if the command that maps the image of a volume has made this device, although it is another
    /// image: another cluster at the same addresses, or a later image of the same name.
    fn is_wrong_result(&self, image: &RbdImage, volume: &str) -> bool {
        self.is_in_pool_of(image)
            && self.image == image.image
            && self.monitors == image.monitor_list()
            && self.key_name.as_deref() == Some(key_name(volume).as_str())
            && !self.is_image(image)
    }
}

/// An image that is mapped several times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{image} is mapped several times, at {devices}: expected one device")]
pub(crate) struct SeveralDevices {
    image: String,
    devices: String,
}

/// Returns the device of an image; `None` if it is not mapped.
pub(crate) fn select_device<'a>(
    devices: &'a [RbdDevice],
    image: &RbdImage,
) -> Result<Option<&'a RbdDevice>, SeveralDevices> {
    let found: Vec<&RbdDevice> = devices.iter().filter(|device| device.is_image(image)).collect();
    match found.as_slice() {
        [] => Ok(None),
        [device] => Ok(Some(device)),
        several => {
            let devices = several.iter().map(|device| device.device.to_string()).collect::<Vec<_>>();
            Err(SeveralDevices { image: image.to_string(), devices: devices.join(", ") })
        }
    }
}

/// Returns a device that is not the image of a volume, although the command for the image has mapped it.
pub(crate) fn wrong_device<'a>(
    devices: &'a [RbdDevice],
    image: &RbdImage,
    volume: &str,
) -> Option<&'a RbdDevice> {
    devices.iter().find(|device| device.is_wrong_result(image, volume))
}

/// Returns the devices of a volume's image, and those that its mapping has made in its place, except those of other
/// volumes.
pub(crate) fn removable_devices<'a>(
    devices: &'a [RbdDevice],
    image: &RbdImage,
    volume: &str,
    others: &[RbdImage],
) -> Vec<&'a RbdDevice> {
    devices
        .iter()
        .filter(|device| device.is_image(image) || device.is_wrong_result(image, volume))
        .filter(|device| !others.iter().any(|other| device.is_image(other)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::RbdFields, *};

    const FSID: &str = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";

    fn image(monitors: &str, name: &str, image_id: &str) -> RbdImage {
        let fields =
            RbdFields { monitors, cluster_fsid: FSID, pool: "p", namespace: None, image: name, image_id };
        RbdImage::parse(fields).unwrap()
    }

    fn device(id: &str, name: &str, image_id: &str) -> RbdDevice {
        RbdDevice {
            id: id.to_owned(),
            device: Device { name: format!("rbd{id}"), number: (252, 0) },
            size: 1,
            monitors: "10.0.0.5:6789".to_owned(),
            key_name: Some(key_name("v")),
            cluster_fsid: FSID.to_owned(),
            pool: "p".to_owned(),
            namespace: String::new(),
            image: name.to_owned(),
            image_id: image_id.to_owned(),
            snapshot: "-".to_owned(),
        }
    }

    #[test]
    fn a_device_is_selected_by_cluster_pool_and_image_id() {
        let wanted = image("10.0.0.5", "a", "11");
        let good = device("0", "a", "11");
        let others = [
            device("1", "a", "12"),
            RbdDevice {
                cluster_fsid: "11111111-3f3c-4e0a-9d0e-3f5f2f1b7a10".to_owned(),
                ..device("2", "a", "11")
            },
            RbdDevice { pool: "q".to_owned(), ..device("3", "a", "11") },
            RbdDevice { namespace: "n".to_owned(), ..device("4", "a", "11") },
            RbdDevice { snapshot: "s".to_owned(), ..device("5", "a", "11") },
        ];
        assert_eq!(select_device(&others, &wanted), Ok(None));
        let renamed = device("6", "b", "11");
        assert_eq!(select_device(std::slice::from_ref(&renamed), &wanted), Ok(Some(&renamed)));
        assert_eq!(
            select_device(&[&others[..], std::slice::from_ref(&good)].concat(), &wanted)
                .map(|found| found.cloned()),
            Ok(Some(good.clone()))
        );
        let error = select_device(&[good, renamed], &wanted).unwrap_err().to_string();
        assert!(error.contains("mapped several times, at /dev/rbd0, /dev/rbd6"), "{error}");
    }

    #[test]
    fn devices_that_the_mapping_of_the_volume_has_made_are_removable() {
        let wanted = image("10.0.0.5", "a", "11");
        let devices = [
            device("0", "a", "11"),
            device("1", "a", "12"),
            RbdDevice { monitors: "10.0.0.6:6789".to_owned(), ..device("2", "a", "13") },
            RbdDevice { monitors: "10.0.0.6:6789".to_owned(), ..device("3", "a", "11") },
            device("4", "b", "14"),
            RbdDevice { key_name: Some(key_name("w")), ..device("5", "a", "15") },
            RbdDevice { key_name: Some("client.admin".to_owned()), ..device("6", "a", "16") },
            RbdDevice { key_name: None, ..device("7", "a", "17") },
        ];
        let removable = |others: &[RbdImage]| -> Vec<String> {
            removable_devices(&devices, &wanted, "v", others)
                .into_iter()
                .map(|device| device.id.clone())
                .collect()
        };
        assert_eq!(removable(&[]), ["0", "1", "3"]);
        assert_eq!(removable(&[image("10.0.0.7", "a", "12")]), ["0", "3"]);
        assert_eq!(wrong_device(&devices, &wanted, "v").unwrap().id, "1");
    }
}
