//! Mounts of NFS exports, without the program `mount.nfs`: the kernel needs the server's address.

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    time::Duration,
};

use super::{
    mounts,
    paths::Result,
    probe::{ProbeConnection, ProbeError},
};
use crate::{
    error::MounterError,
    mount_options::MountOptions,
    nfs::{NfsExport, NfsVersion},
    onc_rpc,
    path::KubeletPath,
};

/// Port of NFS servers (RFC 8881).
const PORT: u16 = 2049;
/// Maximum time until the server responds.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// Returns the addresses of a host name.
pub(super) fn resolve(name: &str) -> Result<Vec<IpAddr>> {
    let failed = |error: String| MounterError::Failed(format!("the name {name} cannot be resolved: {error}"));
    let found = (name, PORT).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    let addresses: Vec<IpAddr> = found.map(|found| found.ip()).collect();
    if addresses.is_empty() { Err(failed("it has no address".to_owned())) } else { Ok(addresses) }
}

/// Mounts an export from the server's address. Fails if no NFS server of the export's version responds there in
/// time: the kernel would wait without a limit, and would mount no export of NFS 4 from another server meanwhile.
pub(super) fn mount(
    export: &NfsExport,
    address: IpAddr,
    options: &MountOptions,
    path: &KubeletPath,
) -> Result<()> {
    let server = SocketAddr::new(address, PORT);
    probe(server, export.version).map_err(|error| {
        MounterError::Failed(format!(
            "the NFS server {} does not respond on {server}: {error}",
            export.server
        ))
    })?;
    let address = address.to_string();
    let transport = if server.is_ipv6() { "tcp6" } else { "tcp" };
    let mut extra = vec![("addr", address.as_str()), ("vers", export.version.as_str()), ("proto", transport)];
    let mut options = options.clone();
    // Mounts of one server otherwise share a superblock: its device, its SELinux label and its read-only state.
    options.data.push(("nosharecache".to_owned(), None));
    if export.version == NfsVersion::V3 {
        extra.extend([("mountaddr", address.as_str()), ("mountproto", transport)]);
        // Without rpc.statd, the server cannot tell the node that its locks are lost.
        options.data.push(("nolock".to_owned(), None));
    }
    mounts::mount(mounts::NFS, &export.source(), &options, &extra, path)
}

/// Calls the null procedure of a version of NFS.
fn probe(server: SocketAddr, version: NfsVersion) -> std::result::Result<(), ProbeError> {
    let mut connection = ProbeConnection::open(server, PROBE_LIMIT)?;
    let xid = std::process::id();
    connection.send(&onc_rpc::null_call(xid, version.major()))?;
    let mut mark = [0; onc_rpc::MARK_BYTES];
    connection.receive(&mut mark)?;
    let mut reply = vec![0; onc_rpc::reply_length(mark)?];
    connection.receive(&mut reply)?;
    Ok(onc_rpc::check_null_reply(&reply, xid)?)
}
