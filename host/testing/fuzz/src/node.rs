//! What the node role reads from the kernel, from tools, from NFS servers and from requests. Pods choose names in
//! these texts, storage arrays choose attributes of their devices, and authors of PersistentVolumes choose mount
//! flags and secrets.

mod mounts;
mod requests;
mod servers;
mod sysfs;
mod tools;

/// A parser of a source's content, and assertions about its result.
type Check = fn(&[u8]);

/// All sources by name.
const SOURCES: [(&str, Check); 13] = [
    ("mountinfo", mounts::mountinfo),
    ("swaps", mounts::swaps),
    ("kernel-message", mounts::kernel_message),
    ("null-reply", servers::null_reply),
    ("nvme-controller", sysfs::nvme_controller),
    ("nvme-disk", sysfs::nvme_disk),
    ("nvme-instance", sysfs::nvme_instance),
    ("rbd-device", sysfs::rbd_device),
    ("blkid", tools::blkid),
    ("losetup", tools::losetup),
    ("stderr", tools::stderr),
    ("mount-flags", requests::mount_flags),
    ("ceph-user", requests::ceph_user),
];

/// The first line names the source of the other lines.
///
/// - A line of mountinfo changes no other line. What the kernel would write for the parsed mounts parses as the
///   same mounts.
/// - A reply of an NFS server is accepted if and only if it has the form of RFC 5531 and the transaction id of
///   the call; a call that is sent back is no reply.
/// - The attributes of parsed controllers, disks and images have one spelling, which parses as the same.
/// - No attribute that an array chooses fails the list of devices.
/// - blkid finds a filesystem only without a partition table, and losetup a loop device only with the file's
///   identity.
/// - Allowed mount flags have one spelling, keep what the policy requires, and name no server or source. The user
///   of a Ceph cluster adds no option to the kernel's command.
/// - A message is one line, without control and format characters, of a bounded length.
pub fn node(data: &[u8]) {
    if let Some((check, content)) = source(data) {
        check(content);
    }
}

fn source(data: &[u8]) -> Option<(Check, &[u8])> {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (name, content) = (parts.next()?, parts.next()?);
    let (_, check) = SOURCES.into_iter().find(|(source, _)| source.as_bytes() == name)?;
    Some((check, content))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_committed_input_names_a_source_and_every_source_has_one() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/node");
        let inputs = fs::read_dir(corpus).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
        let inputs: Vec<Vec<u8>> = inputs.collect();
        assert!(inputs.iter().all(|input| source(input).is_some()));
        for (name, _) in SOURCES {
            assert!(inputs.iter().any(|input| input.starts_with(format!("{name}\n").as_bytes())), "{name}");
        }
    }
}
