//! Tests of attacks by a hostile guest or by a pod with a volume of the pool, of the atomicity of changes,
//! and of names, sizes, capacity, pages and copies.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    sync::Arc,
};

use rustix::fs::{FileType, mkfifoat, mknodat};
use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

fn config(directory: &Path) -> PoolConfig {
    PoolConfig { directory: directory.to_owned(), capacity: Some(64 * MIB), image_bytes_max: Some(32 * MIB) }
}

fn pool() -> (Pool, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (Pool::open(&config(directory.path())).unwrap(), directory)
}

fn names(pool: &Pool) -> Vec<String> {
    pool.scan("", None, u32::MAX).items.into_iter().map(|(name, _)| name).collect()
}

/// Sorted names of all directory entries except the lock file.
fn on_disk(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != LOCK_NAME);
    names.sort();
    names
}

#[test]
fn other_users_cannot_enter_an_open_pool() {
    let directory = tempfile::tempdir().unwrap();
    let mode = || fs::metadata(directory.path()).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o2775)).unwrap();
    drop(Pool::open(&config(directory.path())).unwrap());
    assert_eq!(mode(), 0o2770);
}

#[test]
fn invalid_item_names_are_rejected() {
    let (pool, directory) = pool();
    pool.create_directory("a").unwrap();
    let longest = "n".repeat(MAX_NAME);
    for name in ["0", "a.b", "A-_", longest.as_str()] {
        pool.create_directory(name).unwrap();
    }
    let long = "n".repeat(10_000);
    for name in [
        "",
        ".",
        "..",
        "../a",
        "a/b",
        "/etc",
        "a/",
        "a\0",
        "\0",
        ".lock",
        ".tmp-1",
        "-a",
        "_a",
        "ä",
        "a b",
        "a\n",
        "a\\b",
        long.as_str(),
        &longest.replacen('n', "nn", 1),
    ] {
        let refused =
            |answer: Result<()>| assert!(matches!(answer, Err(PoolError::InvalidName(_))), "{name:?}");
        refused(pool.create_directory(name));
        refused(pool.create_image(name, BLOCK_BYTES));
        refused(pool.remove(name));
        refused(pool.grow(name, BLOCK_BYTES));
        refused(pool.copy("a", name, None, CopyMode::NotAtomic));
        refused(pool.copy(name, "b", None, CopyMode::NotAtomic));
        refused(pool.measure(name).map(drop));
    }
    assert_eq!(on_disk(&directory).len(), 5);
}

#[test]
fn image_sizes_are_exact() {
    let (pool, directory) = pool();
    for size in [0, 1, 4_095, 4_097, 33 * MIB, u64::MAX, u64::MAX - 4_095] {
        assert!(matches!(pool.create_image("i", size), Err(PoolError::InvalidSize(_))), "{size}");
    }
    pool.create_image("i", MIB).unwrap();
    let file = fs::metadata(directory.path().join("i")).unwrap();
    assert_eq!((file.len(), file.blocks(), file.permissions().mode() & 0o7777), (MIB, 0, 0o600));
    assert!(matches!(pool.create_image("i", MIB), Err(PoolError::Exists(_))));
    assert!(matches!(pool.create_directory("i"), Err(PoolError::Exists(_))));
    pool.grow("i", 4_096).unwrap();
    assert_eq!(pool.measure("i").unwrap().size_bytes, Some(MIB), "nothing shrinks");
    pool.grow("i", 2 * MIB).unwrap();
    assert!(matches!(pool.copy("i", "j", Some(MIB), CopyMode::NotAtomic), Err(PoolError::InvalidSize(_))));
    pool.copy("i", "j", Some(3 * MIB), CopyMode::NotAtomic).unwrap();
    assert_eq!(fs::metadata(directory.path().join("j")).unwrap().len(), 3 * MIB);
    pool.create_directory("d").unwrap();
    assert!(matches!(pool.grow("d", MIB), Err(PoolError::WrongKind(_))));
    assert!(matches!(pool.copy("d", "e", Some(MIB), CopyMode::NotAtomic), Err(PoolError::WrongKind(_))));
    assert!(matches!(pool.grow("k", MIB), Err(PoolError::Missing(_))));
    assert!(matches!(pool.copy("k", "l", None, CopyMode::NotAtomic), Err(PoolError::Missing(_))));
    assert_eq!(on_disk(&directory), ["d", "i", "j"]);
}

#[test]
fn images_count_with_their_full_size() {
    let (pool, directory) = pool();
    pool.create_image("a", 32 * MIB).unwrap();
    pool.create_image("b", 20 * MIB).unwrap();
    let room = pool.usage().unwrap();
    assert_eq!((room.total_bytes, room.available_bytes), (64 * MIB, 12 * MIB));
    let full = pool.create_image("c", 16 * MIB);
    let Err(PoolError::NoSpace(Bound { limit, given })) = full else { panic!("{full:?}") };
    assert_eq!((limit, given), (12 * MIB, 16 * MIB));
    assert!(matches!(pool.grow("b", 32 * MIB + BLOCK_BYTES), Err(PoolError::InvalidSize(_))));
    pool.grow("b", 32 * MIB).unwrap();
    assert!(matches!(pool.copy("a", "c", None, CopyMode::NotAtomic), Err(PoolError::NoSpace(_))));
    assert_eq!(names(&pool), ["a", "b"]);
    pool.remove("a").unwrap();
    drop(pool);
    let pool = Pool::open(&config(directory.path())).unwrap();
    assert_eq!(pool.usage().unwrap().available_bytes, 32 * MIB, "counted anew at the start");
}

#[test]
fn unwritten_image_bytes_stay_reserved() {
    let directory = tempfile::tempdir().unwrap();
    let config = PoolConfig { capacity: None, ..config(directory.path()) };
    let pool = Pool::open(&PoolConfig { image_bytes_max: None, ..config }).unwrap();
    let before = pool.usage().unwrap().available_bytes;
    // Sparse, so it uses no disk space; other processes use far less than half of it meanwhile.
    let size = before / 2 / BLOCK_BYTES * BLOCK_BYTES;
    pool.create_image("a", size).unwrap();
    assert!(pool.usage().unwrap().available_bytes < before - size / 2);
    assert!(matches!(
        pool.create_image("b", size / 2 * 3 / BLOCK_BYTES * BLOCK_BYTES),
        Err(PoolError::NoSpace(_))
    ));
    pool.remove("a").unwrap();
    assert!(pool.usage().unwrap().available_bytes > before - size / 2);
}

#[test]
fn directory_with_many_subdirectories_is_removed() {
    let (pool, directory) = pool();
    pool.create_directory("many").unwrap();
    for number in 0..200 {
        fs::create_dir_all(directory.path().join(format!("many/{number}/inner/most"))).unwrap();
        fs::write(directory.path().join(format!("many/{number}/inner/file")), "x").unwrap();
    }
    pool.remove("many").unwrap();
    assert_eq!(on_disk(&directory), [] as [&str; 0]);
}

#[test]
fn copied_directory_keeps_data_owner_mode_and_times() {
    let (pool, directory) = pool();
    pool.create_directory("d").unwrap();
    let root = directory.path().join("d");
    assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o7777, 0o750);
    fs::create_dir_all(root.join("x/y")).unwrap();
    fs::write(root.join("x/y/file"), "content").unwrap();
    fs::set_permissions(root.join("x/y/file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("/etc/passwd", root.join("x/link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(8 * MIB).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 8 * MIB - 3).unwrap();
    fs::set_permissions(root.join("x"), fs::Permissions::from_mode(0o700)).unwrap();
    pool.copy("d", "e", None, CopyMode::NotAtomic).unwrap();
    let copy = directory.path().join("e");
    assert_eq!(fs::read_to_string(copy.join("x/y/file")).unwrap(), "content");
    assert_eq!(fs::metadata(copy.join("x/y/file")).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(fs::metadata(copy.join("x")).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(fs::read_link(copy.join("x/link")).unwrap(), Path::new("/etc/passwd"));
    let (original, copied) = (fs::read(root.join("sparse")).unwrap(), fs::read(copy.join("sparse")).unwrap());
    assert!(original == copied);
    assert!(fs::metadata(copy.join("sparse")).unwrap().blocks() * 512 < MIB, "holes stay holes");
    fs::write(root.join("x/y/file"), "changed").unwrap();
    assert_eq!(fs::read_to_string(copy.join("x/y/file")).unwrap(), "content");
    assert!(pool.measure("e").unwrap().used_bytes > 0);
}

#[test]
fn symlinks_and_hard_links_do_not_escape_the_pool() {
    let (pool, directory) = pool();
    let outside = tempfile::tempdir().unwrap();
    let outside_file = outside.path().join("treasure");
    fs::write(&outside_file, vec![7; 8_192]).unwrap();
    symlink(outside.path(), directory.path().join("evil")).unwrap();
    symlink(&outside_file, directory.path().join("evil-file")).unwrap();
    for name in ["evil", "evil-file"] {
        assert!(matches!(pool.measure(name), Err(PoolError::WrongKind(_))));
        assert!(matches!(pool.grow(name, MIB), Err(PoolError::WrongKind(_))));
        assert!(matches!(pool.copy(name, "copy", None, CopyMode::NotAtomic), Err(PoolError::WrongKind(_))));
        assert!(matches!(pool.create_directory(name), Err(PoolError::Exists(_))));
    }
    assert_eq!(names(&pool), [""; 0]);
    // A directory that becomes a link between two calls.
    pool.create_directory("d").unwrap();
    fs::remove_dir(directory.path().join("d")).unwrap();
    symlink(outside.path(), directory.path().join("d")).unwrap();
    assert!(matches!(pool.measure("d"), Err(PoolError::WrongKind(_))));
    assert!(matches!(pool.copy("d", "copy", None, CopyMode::NotAtomic), Err(PoolError::WrongKind(_))));
    for name in ["d", "evil", "evil-file"] {
        pool.remove(name).unwrap();
    }
    // Symbolic and hard links inside of a directory.
    pool.create_directory("links").unwrap();
    let links = directory.path().join("links");
    symlink(outside.path(), links.join("dir")).unwrap();
    symlink(&outside_file, links.join("file")).unwrap();
    symlink("..", links.join("up")).unwrap();
    fs::hard_link(&outside_file, links.join("hard")).unwrap();
    pool.remove("links").unwrap();
    // An image that is a hard link to a file outside of the pool.
    fs::hard_link(&outside_file, directory.path().join("image")).unwrap();
    assert!(matches!(pool.grow("image", MIB), Err(PoolError::Failed(_))));
    assert!(matches!(pool.copy("image", "copy", None, CopyMode::NotAtomic), Err(PoolError::Failed(_))));
    pool.remove("image").unwrap();
    assert_eq!(fs::read(&outside_file).unwrap(), vec![7; 8_192]);
    assert_eq!(on_disk(&directory), [""; 0]);
}

#[test]
fn pipes_and_sockets_are_skipped_and_devices_rejected() {
    let (pool, directory) = pool();
    let root = fs::File::open(directory.path()).unwrap();
    mkfifoat(&root, "fifo", Mode::RUSR).unwrap();
    assert!(matches!(pool.measure("fifo"), Err(PoolError::WrongKind(_))));
    assert!(matches!(pool.copy("fifo", "x", None, CopyMode::NotAtomic), Err(PoolError::WrongKind(_))));
    pool.remove("fifo").unwrap();
    pool.create_directory("d").unwrap();
    let inner = fs::File::open(directory.path().join("d")).unwrap();
    for (name, kind) in [("pipe", FileType::Fifo), ("socket", FileType::Socket)] {
        mknodat(&inner, name, kind, Mode::RUSR, 0).unwrap();
    }
    fs::write(directory.path().join("d/file"), "content").unwrap();
    pool.copy("d", "e", None, CopyMode::NotAtomic).unwrap();
    let copied = fs::read_dir(directory.path().join("e")).unwrap();
    let copied: Vec<_> = copied.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(copied, ["file"], "what a process serves is left out");
    pool.remove("e").unwrap();
    // Creating a device needs privileges.
    if mknodat(&inner, "device", FileType::CharacterDevice, Mode::RUSR, 0x103).is_ok() {
        let error = pool.copy("d", "e", None, CopyMode::NotAtomic).unwrap_err();
        let expected = "\"device\" in it is a device; expected directories, files and links";
        assert!(matches!(&error, PoolError::Unsupported(why) if why == expected), "{error:?}");
        assert_eq!(on_disk(&directory), ["d"], "what was begun is gone");
    }
    pool.measure("d").unwrap();
    pool.remove("d").unwrap();
}

#[test]
fn directory_of_any_depth_is_removed() {
    let (pool, directory) = pool();
    pool.create_directory("d").unwrap();
    let mut level: OwnedFd = fs::File::open(directory.path().join("d")).unwrap().into();
    for _ in 0..3_000 {
        mkdirat(&level, "d", Mode::RWXU).unwrap();
        level = sys::open_directory(&level, "d").unwrap();
    }
    let error = pool.copy("d", "e", None, CopyMode::NotAtomic).unwrap_err();
    assert!(matches!(&error, PoolError::Unsupported(why) if why.contains("deeper than")), "{error:?}");
    assert!(matches!(pool.measure("d"), Err(PoolError::Unsupported(_))));
    pool.remove("d").unwrap();
    assert_eq!(on_disk(&directory), [""; 0]);
}

#[test]
fn leftovers_of_a_crash_are_removed_at_start() {
    let directory = tempfile::tempdir().unwrap();
    for name in [".tmp-1-0/x", ".trash-1-0/y/z", "item"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    fs::write(directory.path().join(".tmp-1-1"), "half").unwrap();
    symlink("/etc", directory.path().join(".trash-1-2")).unwrap();
    let pool = Pool::open(&config(directory.path())).unwrap();
    assert_eq!(on_disk(&directory), ["item"]);
    assert_eq!(names(&pool), ["item"]);
}

#[test]
fn a_pool_has_one_owner_and_is_a_directory() {
    let (pool, directory) = pool();
    let refused = |path: &Path| Pool::open(&config(path)).unwrap_err().to_string();
    assert_eq!(refused(directory.path()), "is in use by another backend of this process");
    drop(pool);
    Pool::open(&config(directory.path())).unwrap();
    let link = directory.path().join("link");
    symlink("/tmp", &link).unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [&link, &file] {
        assert_eq!(refused(path), "is not a directory: expected one, and no link to it");
    }
    assert!(refused(&directory.path().join("missing")).starts_with("cannot be opened: No such file"));
}

#[test]
fn item_being_created_is_busy() {
    let (pool, _directory) = pool();
    pool.create_directory("source").unwrap();
    let item_lock = pool.lock_item("new").unwrap();
    assert!(matches!(pool.create_directory("new"), Err(PoolError::Busy(_))));
    assert!(matches!(pool.measure("new"), Err(PoolError::Busy(_))));
    let first = pool.lock_for_copy("source").unwrap();
    let second = pool.lock_for_copy("source").unwrap();
    drop(first);
    assert!(matches!(pool.remove("source"), Err(PoolError::Busy(_))), "it is still being copied");
    assert!(pool.measure("source").is_ok());
    drop((item_lock, second));
    pool.remove("source").unwrap();
    pool.create_directory("new").unwrap();
}

#[test]
fn concurrent_creates_make_one_item() {
    let (pool, directory) = pool();
    let pool = Arc::new(pool);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || pool.create_image("i", MIB).is_ok())
        })
        .collect();
    let made = threads.into_iter().filter(|_| true).map(|thread| thread.join().unwrap());
    assert_eq!(made.filter(|made| *made).count(), 1);
    assert_eq!(on_disk(&directory), ["i"]);
    assert_eq!(pool.usage().unwrap().available_bytes, 63 * MIB);
}

#[test]
fn pages_follow_each_other() {
    let (pool, _directory) = pool();
    for name in ["a-1", "b-1", "b-2", "b-3", "c"] {
        pool.create_directory(name).unwrap();
    }
    let scan = |after: Option<&str>, limit| {
        let page = pool.scan("b-", after, limit);
        (page.items.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" "), page.more)
    };
    assert_eq!(scan(None, 2), ("b-1 b-2".to_owned(), true));
    assert_eq!(scan(Some("b-2"), 2), ("b-3".to_owned(), false));
    assert_eq!(scan(Some("c"), 2), (String::new(), false));
}

/// A mounted tmpfs of 2 MiB. `new` returns `None` without the privilege to mount.
struct Mount(TempDir);

impl Mount {
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "none"])
            .arg(directory.path())
            .stderr(std::process::Stdio::null())
            .status();
        mount.is_ok_and(|status| status.success()).then_some(Self(directory))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg(self.0.path()).status().unwrap();
    }
}

#[test]
fn full_disk_leaves_no_partial_item() {
    let Some(mount) = Mount::new() else {
        return eprintln!("skipped: this user may not mount a filesystem");
    };
    let pool = Pool::open(&PoolConfig { capacity: None, ..config(mount.0.path()) }).unwrap();
    pool.create_directory("d").unwrap();
    fs::write(mount.0.path().join("d/file"), vec![1; 1_200 << 10]).unwrap();
    assert!(matches!(pool.copy("d", "e", None, CopyMode::NotAtomic), Err(PoolError::NoSpace(_))));
    assert_eq!(on_disk(&mount.0), ["d"]);
    assert!(matches!(pool.create_image("i", 4 * MIB), Err(PoolError::NoSpace(_))));
    assert_eq!(pool.usage().unwrap().total_bytes, 2 * MIB);
}

#[test]
fn mount_inside_an_item_is_neither_copied_nor_removed() {
    let (pool, directory) = pool();
    pool.create_directory("d").unwrap();
    let inner = directory.path().join("d/mount");
    fs::create_dir(&inner).unwrap();
    let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&inner).status();
    if !mount.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: this user may not mount a filesystem");
    }
    fs::write(inner.join("file"), "kept").unwrap();
    let refused = |answer: Result<()>| {
        let refused = matches!(&answer, Err(PoolError::Unsupported(why)) if why.contains("is a mount"));
        assert!(refused, "{answer:?}");
    };
    refused(pool.copy("d", "e", None, CopyMode::NotAtomic));
    refused(pool.measure("d").map(drop));
    let removed = pool.remove("d").unwrap_err();
    assert!(matches!(&removed, PoolError::Unknown(why) if why.contains("is a mount")), "{removed:?}");
    assert!(matches!(pool.remove("d"), Err(PoolError::Missing(_))), "it is no item any more");
    let moved = on_disk(&directory).pop().unwrap();
    let inner = directory.path().join(moved).join("mount");
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "kept");
    std::process::Command::new("umount").arg(&inner).status().unwrap();
}

#[test]
fn change_that_cannot_be_synced_returns_unknown() {
    let (pool, directory) = pool();
    pool.create_image("source", MIB).unwrap();
    let set_sync_failing = |on| pool.is_sync_failing.store(on, Ordering::Relaxed);
    let unknown = |answer: Result<()>| assert!(matches!(answer, Err(PoolError::Unknown(_))), "{answer:?}");
    set_sync_failing(true);
    unknown(pool.create_directory("d"));
    unknown(pool.create_image("i", MIB));
    unknown(pool.copy("source", "c", None, CopyMode::NotAtomic));
    unknown(pool.copy("d", "e", None, CopyMode::NotAtomic));
    unknown(pool.grow("source", 2 * MIB));
    // A retry must not succeed either.
    unknown(pool.create_directory("d"));
    unknown(pool.create_image("i", MIB));
    unknown(pool.grow("source", 2 * MIB));
    assert_eq!(names(&pool), ["c", "d", "e", "i", "source"]);
    assert_eq!(on_disk(&directory), names(&pool));
    assert_eq!(pool.usage().unwrap().available_bytes, 60 * MIB, "all of it is promised");
    unknown(pool.remove("i"));
    unknown(pool.remove("i"));
    assert_eq!(names(&pool), ["c", "d", "e", "source"]);
    set_sync_failing(false);
    assert!(matches!(pool.create_directory("d"), Err(PoolError::Exists(_))));
    assert!(matches!(pool.remove("i"), Err(PoolError::Missing(_))));
    pool.grow("source", 2 * MIB).unwrap();
    assert_eq!(pool.usage().unwrap().available_bytes, 61 * MIB);
}

#[test]
fn point_in_time_copy_needs_reflinks() {
    let Some(mount) = Mount::new() else {
        return eprintln!("skipped: this user may not mount a filesystem");
    };
    // tmpfs cannot share blocks between files.
    let pool = Pool::open(&config(mount.0.path())).unwrap();
    pool.create_image("i", MIB / 4).unwrap();
    pool.create_directory("d").unwrap();
    for (source, expected) in [("i", "has no reflinks"), ("d", "a directory has no point-in-time copies")] {
        let error = pool.copy(source, "copy", None, CopyMode::PointInTime).unwrap_err();
        assert!(matches!(&error, PoolError::Unsupported(why) if why.contains(expected)), "{error:?}");
    }
    assert_eq!(names(&pool), ["d", "i"]);
    assert_eq!(on_disk(&mount.0), ["d", "i"], "what was begun is gone");
    pool.copy("i", "copy", None, CopyMode::NotAtomic).unwrap();
}

#[test]
fn sizes_are_numbers_or_quantities() {
    let read = |capacity: &str| {
        let text = format!(r#"{{"directory": "/d", "capacity": {capacity}, "image-bytes-max": "1.5Ki"}}"#);
        serde_json::from_str::<PoolConfig>(&text).map_err(|error| error.to_string())
    };
    for (given, expected) in [("7", 7), (r#""7""#, 7), (r#""100Gi""#, 100 << 30), (r#""5G""#, 5_000_000_000)]
    {
        let config = read(given).unwrap();
        assert_eq!((config.capacity, config.image_bytes_max), (Some(expected), Some(1_536)), "{given}");
    }
    for (given, expected) in [
        ("-1", "expected a number of bytes, or a text such as \"100Gi\""),
        (r#""-1""#, "is negative"),
        (r#""much""#, "is not a quantity"),
        (r#""16Ei""#, "is more than 2^63 - 1 bytes"),
        ("true", "expected a number of bytes"),
    ] {
        let error = read(given).unwrap_err();
        assert!(error.contains(expected), "{given}: {error}");
    }
    assert_eq!(serde_json::from_str::<PoolConfig>(r#"{"directory": "/d"}"#).unwrap().capacity, None);
}
