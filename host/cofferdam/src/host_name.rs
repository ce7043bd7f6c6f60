//! The name of this process.

/// Name of this process in events, in the provisioner identity of volumes, and in deletion requests of
/// `cofferdam orphans`: the host name, which in a pod without `hostNetwork` is the pod's name; `cofferdam` if
/// the host name is unknown.
pub(crate) fn host_name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = kernel.trim();
    let name = if name.is_empty() { std::env::var("HOSTNAME").unwrap_or_default() } else { name.to_owned() };
    if name.is_empty() { "cofferdam".to_owned() } else { name }
}
