//! Volumes with mounts of this machine's kernel, which need CAP_SYS_ADMIN. Without it the test runs in
//! namespaces of its own.

use std::{
    collections::BTreeSet, ffi::OsStr, fs, os::unix::ffi::OsStrExt as _, path::PathBuf, process::Command,
};

use cofferdam_node::{ConnectionKind, KubeletRoots, LinuxMounter, NodePolicy, NodeVolumes};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use crate::support::{MIB, connection_info, publish_request, single_writer, stage_request};

/// Returns true if this process has CAP_SYS_ADMIN, which root in a container may lack.
fn can_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(line.trim(), 16).unwrap();
    // CAP_SYS_ADMIN
    capabilities & (1 << 21) != 0
}

/// Runs a test of this program as root of a new user namespace and a new mount namespace.
fn run_in_namespaces(test: &str) {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]).arg(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "without CAP_SYS_ADMIN, expected a machine that can run `unshare --user --map-root-user --mount`: \
         {text}"
    );
}

/// Unmounts a path on drop if something is mounted there, also if the test fails.
struct UnmountOnDrop(PathBuf);

impl Drop for UnmountOnDrop {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A container with `subPath: link`, where `link` names a directory `\xff`, has kubelet bind that directory
/// below kubelet's root. In mountinfo, the root of this mount is not UTF-8.
#[test]
fn volumes_are_served_beside_a_mount_whose_root_is_not_utf8() {
    if !can_mount() {
        return run_in_namespaces("linux::volumes_are_served_beside_a_mount_whose_root_is_not_utf8");
    }
    let scratch = tempfile::TempDir::new().unwrap();
    let base = fs::canonicalize(scratch.path()).unwrap();
    let root = base.join("kubelet");
    let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
    for directory in ["pods", "plugins/staging"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let connection_kinds: BTreeSet<ConnectionKind> = [ConnectionKind::Tmpfs].into();
    let policy = NodePolicy { connection_kinds, tmpfs_max_bytes: Some(MIB), ..NodePolicy::default() };
    let mounter = LinuxMounter::open(&policy, &base.join("records")).unwrap();
    let roots = KubeletRoots::new([root.to_str().unwrap().to_owned()]).unwrap();
    let node = NodeVolumes::new(mounter, roots, policy);

    let _staged = UnmountOnDrop(at("plugins/staging").into());
    let _published = UnmountOnDrop(at("pods/a").into());
    let mut stage = stage_request("v", connection_info("tmpfs", &[("size", "1048576")]), single_writer());
    stage.staging_path = at("plugins/staging");
    node.stage(&stage).unwrap();
    let mut publish = publish_request("v", "a", single_writer());
    (publish.staging_path, publish.target_path) = (stage.staging_path.clone(), at("pods/a"));
    node.publish(&publish).unwrap();

    let odd_name = root.join("pods/a").join(OsStr::from_bytes(b"\xff"));
    fs::create_dir(&odd_name).unwrap();
    let subpath = UnmountOnDrop(root.join("pods/subpath"));
    fs::create_dir(&subpath.0).unwrap();
    mount_bind(&odd_name, &subpath.0).unwrap();
    let table = fs::read("/proc/self/mountinfo").unwrap();
    assert!(String::from_utf8(table).is_err(), "the kernel does not escape the byte");

    // Each of these calls reads the mount table.
    node.publish(&publish).unwrap();
    node.stage(&stage).unwrap();
    assert!(node.volume_stats("v", &publish.target_path).is_ok());
    node.unpublish("v", &publish.target_path).unwrap();
    node.unstage("v", &stage.staging_path).unwrap();
    drop(subpath);
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let base = base.to_str().unwrap().as_bytes();
    assert!(!table.windows(base.len()).any(|part| part == base), "a mount remains");
}
