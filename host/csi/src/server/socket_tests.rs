use super::*;

fn options(directory: &tempfile::TempDir) -> SocketOptions {
    SocketOptions::new(directory.path().join("csi.sock").to_str().unwrap().parse().unwrap())
}

fn refusal(bound: Result<Socket, SocketError>, directory: &tempfile::TempDir) -> String {
    bound.unwrap_err().to_string().replace(directory.path().to_str().unwrap(), "DIR")
}

#[tokio::test]
async fn a_socket_is_its_owners_and_goes_at_the_end() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    let socket = Socket::bind(&options).await.unwrap();
    let mode = fs::metadata(socket.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    UnixStream::connect(socket.path()).await.unwrap();
    drop(socket);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn mode_and_group_are_the_operators() {
    let directory = tempfile::TempDir::new().unwrap();
    let own = fs::metadata(directory.path()).unwrap().gid();
    let options = SocketOptions { mode: Mode(0o660), group: Some(Group::Id(own)), ..options(&directory) };
    let socket = Socket::bind(&options).await.unwrap();
    let found = fs::metadata(socket.path()).unwrap();
    assert_eq!((found.permissions().mode() & 0o7777, found.gid()), (0o660, own));
    let unknown = SocketOptions { group: Some(Group::Name("no-such-group".to_owned())), ..options };
    assert_eq!(
        refusal(Socket::bind(&unknown).await, &directory),
        "DIR/csi.sock: cannot give the socket to group no-such-group: /etc/group has no group no-such-group"
    );
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    // A listener that ends without removing its file, as a process that is killed.
    drop(std::os::unix::net::UnixListener::bind(options.address.path()).unwrap());
    let socket = Socket::bind(&options).await.unwrap();
    assert_eq!(
        refusal(Socket::bind(&options).await, &directory),
        "DIR/csi.sock: another process listens on this socket; expected none"
    );
    UnixStream::connect(socket.path()).await.expect("it is still there");
}

#[tokio::test]
async fn what_is_no_socket_stays() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    fs::write(options.address.path(), "mine").unwrap();
    assert_eq!(
        refusal(Socket::bind(&options).await, &directory),
        "DIR/csi.sock: is not a socket; expected a socket or nothing there"
    );
    assert_eq!(fs::read_to_string(options.address.path()).unwrap(), "mine");
    fs::remove_file(options.address.path()).unwrap();
    std::os::unix::fs::symlink("elsewhere", options.address.path()).unwrap();
    assert!(refusal(Socket::bind(&options).await, &directory).contains("is not a socket"));
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_named() {
    let directory = tempfile::TempDir::new().unwrap();
    let address = directory.path().join("none/csi.sock").to_str().unwrap().parse().unwrap();
    let refused = Socket::bind(&SocketOptions::new(address)).await;
    assert_eq!(
        refusal(refused, &directory),
        "DIR/none/csi.sock: cannot lock its directory: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn a_later_socket_of_the_same_name_is_not_removed() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    let first = Socket::bind(&options).await.unwrap();
    let aside = directory.path().join("aside");
    fs::rename(first.path(), &aside).unwrap();
    let second = Socket::bind(&options).await.unwrap();
    drop(first);
    UnixStream::connect(second.path()).await.expect("it is the second one's");
}

#[tokio::test]
async fn of_many_who_start_at_once_one_listens() {
    let directory = tempfile::TempDir::new().unwrap();
    let options = options(&directory);
    drop(std::os::unix::net::UnixListener::bind(options.address.path()).unwrap());
    let all = futures::future::join_all((0..16).map(|_| Socket::bind(&options))).await;
    let (bound, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((bound.len(), refused.len()), (1, 15));
    UnixStream::connect(options.address.path()).await.unwrap();
}

#[test]
fn modes_and_groups_as_operators_write_them() {
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
        assert_eq!(text.parse::<Mode>().ok().map(|mode| mode.to_string()).as_deref(), mode, "{text}");
    }
    assert_eq!("107".parse(), Ok(Group::Id(107)));
    assert_eq!("kube".parse(), Ok(Group::Name("kube".to_owned())));
    assert!(
        "".parse::<Group>().is_err()
            && "a:b".parse::<Group>().is_err()
            && "4294967296".parse::<Group>().is_err()
    );
    let table = "root:x:0:\nkubelet:x:107:a,b\nkube:x:108:\nbroken:x\n";
    assert_eq!(
        ["kube", "root", "kub", "broken"].map(|name| group_id(table, name)),
        [Some(108), Some(0), None, None]
    );
}
