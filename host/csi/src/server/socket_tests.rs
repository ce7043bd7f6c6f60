use super::*;

fn options(directory: &tempfile::TempDir) -> SocketOptions {
    SocketOptions::new(directory.path().join("csi.sock").to_str().unwrap().parse().unwrap())
}

fn bind_error(result: Result<ServerSocket, SocketError>, directory: &tempfile::TempDir) -> String {
    result.unwrap_err().to_string().replace(directory.path().to_str().unwrap(), "DIR")
}

#[tokio::test]
async fn socket_is_mode_0600_and_removed_on_drop() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    let socket = ServerSocket::bind(&options).await.unwrap();
    let mode = fs::metadata(socket.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    UnixStream::connect(socket.path()).await.unwrap();
    drop(socket);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn socket_gets_the_configured_mode_and_group() {
    let directory = tempfile::TempDir::new().unwrap();
    let own_gid = fs::metadata(directory.path()).unwrap().gid();
    let options = SocketOptions {
        mode: UnixSocketMode(0o660),
        group: Some(UnixSocketGroup::Id(own_gid)),
        ..options(&directory)
    };
    let socket = ServerSocket::bind(&options).await.unwrap();
    let metadata = fs::metadata(socket.path()).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.gid()), (0o660, own_gid));
    let unknown = SocketOptions { group: Some(UnixSocketGroup::Name("no-such-group".to_owned())), ..options };
    assert_eq!(
        bind_error(ServerSocket::bind(&unknown).await, &directory),
        "DIR/csi.sock: cannot give the socket to group no-such-group: /etc/group has no group no-such-group"
    );
}

#[tokio::test]
async fn stale_socket_is_replaced_and_a_live_one_is_refused() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    // A listener that exits without removing its file, like a killed process.
    drop(std::os::unix::net::UnixListener::bind(options.address.path()).unwrap());
    let socket = ServerSocket::bind(&options).await.unwrap();
    assert_eq!(
        bind_error(ServerSocket::bind(&options).await, &directory),
        "DIR/csi.sock: another process listens on this socket; expected none"
    );
    UnixStream::connect(socket.path()).await.expect("the socket still accepts connections");
}

#[tokio::test]
async fn file_that_is_not_a_socket_is_kept_and_refused() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    fs::write(options.address.path(), "mine").unwrap();
    assert_eq!(
        bind_error(ServerSocket::bind(&options).await, &directory),
        "DIR/csi.sock: is not a socket; expected a socket or nothing there"
    );
    assert_eq!(fs::read_to_string(options.address.path()).unwrap(), "mine");
    fs::remove_file(options.address.path()).unwrap();
    std::os::unix::fs::symlink("elsewhere", options.address.path()).unwrap();
    assert!(bind_error(ServerSocket::bind(&options).await, &directory).contains("is not a socket"));
}

#[tokio::test]
async fn missing_socket_directory_is_named_in_the_error() {
    let directory = tempfile::TempDir::new().unwrap();
    let address = directory.path().join("none/csi.sock").to_str().unwrap().parse().unwrap();
    let result = ServerSocket::bind(&SocketOptions::new(address)).await;
    assert_eq!(
        bind_error(result, &directory),
        "DIR/none/csi.sock: cannot lock its directory: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn dropping_a_socket_keeps_a_newer_one_at_the_same_path() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    let first = ServerSocket::bind(&options).await.unwrap();
    let moved_path = directory.path().join("aside");
    fs::rename(first.path(), &moved_path).unwrap();
    let second = ServerSocket::bind(&options).await.unwrap();
    drop(first);
    UnixStream::connect(second.path()).await.expect("the second socket accepts connections");
}

#[tokio::test]
async fn concurrent_binds_leave_exactly_one_listener() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    drop(std::os::unix::net::UnixListener::bind(options.address.path()).unwrap());
    let results = futures::future::join_all((0..16).map(|_| ServerSocket::bind(&options))).await;
    let (bound, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((bound.len(), refused.len()), (1, 15));
    UnixStream::connect(options.address.path()).await.unwrap();
}

#[test]
fn socket_modes_and_groups_are_parsed() {
    for (text, mode) in [
        ("600", Some("0600")),
        ("0660", Some("0660")),
        ("777", Some("0777")),
        ("0", None),
        ("1777", None),
        ("888", None),
        ("+660", None),
        ("00660", None),
    ] {
        assert_eq!(
            text.parse::<UnixSocketMode>().ok().map(|mode| mode.to_string()).as_deref(),
            mode,
            "{text}"
        );
    }
    assert_eq!("107".parse(), Ok(UnixSocketGroup::Id(107)));
    assert_eq!("kube".parse(), Ok(UnixSocketGroup::Name("kube".to_owned())));
    assert!(
        "".parse::<UnixSocketGroup>().is_err()
            && "a:b".parse::<UnixSocketGroup>().is_err()
            && "4294967296".parse::<UnixSocketGroup>().is_err()
    );
    let group_file = "root:x:0:\nkubelet:x:107:a,b\nkube:x:108:\nbroken:x\n";
    assert_eq!(
        ["kube", "root", "kub", "broken"].map(|name| group_id(group_file, name)),
        [Some(108), Some(0), None, None]
    );
}
