//! The images of a small program and small packages.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod fixture;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read as _,
    path::Path,
};

use cofferdam_image::{
    Architecture, CrateList, Entry, FileTree, Image, Layer, Layout, Release, ReleaseLayers, SIDECARS,
    assemble, compare, write_archive,
};
use fixture::{AARCH64, Elf, program, release};
use flate2::read::GzDecoder;
use serde_json::Value;
use tempfile::TempDir;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn blob(layout: &Path, descriptor: &Value) -> std::path::PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    layout.join("blobs").join(digest.replace(':', "/"))
}

/// The manifest of each image by its name.
fn manifests(layout: &Path) -> BTreeMap<String, Value> {
    let index = json(&layout.join("index.json"));
    let manifests = index["manifests"].as_array().unwrap();
    let name =
        |of: &Value| of["annotations"]["org.opencontainers.image.ref.name"].as_str().unwrap().to_owned();
    manifests.iter().map(|manifest| (name(manifest), json(&blob(layout, manifest)))).collect()
}

/// The files of all layers of an image: mode and content, or the target of a link.
fn files(layout: &Path, manifest: &Value) -> BTreeMap<String, (u32, String)> {
    let mut files = BTreeMap::new();
    for layer in manifest["layers"].as_array().unwrap() {
        let data = fs::read(blob(layout, layer)).unwrap();
        let mut archive = tar::Archive::new(GzDecoder::new(&data[..]));
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let header = entry.header().clone();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            assert_eq!(header.mtime().unwrap(), 1_700_000_000);
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            let text = match entry.link_name_bytes() {
                Some(link) => format!("-> {}", String::from_utf8_lossy(&link)),
                None => String::from_utf8_lossy(&data).into_owned(),
            };
            files.insert(path, (header.mode().unwrap(), text));
        }
    }
    files
}

fn fails(change: impl FnOnce(&mut Release)) -> String {
    let directory = TempDir::new().unwrap();
    let mut release = release(&directory.path().join("image"), program(b""));
    change(&mut release);
    let error = assemble(&release).unwrap_err().to_string();
    assert!(!directory.path().join("image/index.json").exists(), "a failed build has an index");
    error
}

#[test]
fn two_builds_are_equal_and_another_program_is_named() {
    let directory = TempDir::new().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| directory.path().join(name));
    let first = assemble(&release(&a, program(b"code"))).unwrap();
    let second = assemble(&release(&b, program(b"code"))).unwrap();
    assert_eq!(first, second);
    assert_eq!(fs::read(a.join("index.json")).unwrap(), fs::read(b.join("index.json")).unwrap());
    for bom in ["cofferdam", "cofferdam-node"] {
        let bom = format!("sbom/{bom}.cdx.json");
        assert_eq!(fs::read(a.join(&bom)).unwrap(), fs::read(b.join(&bom)).unwrap());
    }
    assert_eq!(compare(&a, &b).unwrap(), Vec::<String>::new());

    let other = assemble(&release(&c, program(b"Code"))).unwrap();
    assert_ne!(other.digest, first.digest);
    let digests = |report: &cofferdam_image::Report| -> Vec<String> {
        report.layers.iter().map(|layer| layer.digest.clone()).collect()
    };
    let (first, other) = (digests(&first), digests(&other));
    assert_eq!((&first[0], &first[2]), (&other[0], &other[2]), "libraries and tools are the same layers");
    assert_ne!(first[1], other[1]);
    let differences = compare(&a, &c).unwrap();
    assert_eq!(differences.len(), 1, "{differences:?}");
    assert!(differences[0].starts_with("layer 2: usr/bin/cofferdam: regular (mode 755, "), "{differences:?}");

    // Into the directory of an earlier build: no blob of it remains.
    assemble(&release(&a, program(b"Code"))).unwrap();
    let blobs = |layout: &Path| -> BTreeSet<_> {
        fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(blobs(&a), blobs(&c));
}

#[test]
fn two_versions_in_one_layout_share_their_layers() {
    let directory = TempDir::new().unwrap();
    let [both, alone] = ["both", "alone"].map(|name| directory.path().join(name));
    let mut release = release(&alone, program(b"code"));
    let single = assemble(&release).unwrap();
    let layers = ReleaseLayers::new(&release).unwrap();
    let mut layout = Layout::create(&both, release.packages.architecture, release.created).unwrap();
    let first = layers.add_images(&mut layout, &release).unwrap();
    release.version = "0.2.0".to_owned();
    let second = layers.add_images(&mut layout, &release).unwrap();
    layout.finish().unwrap();
    assert_eq!(first, single.images);
    assert_eq!((second[0].name.as_str(), second.len()), ("cofferdam:0.2.0", first.len()));
    assert_ne!(second[0].digest, first[0].digest);
    let count = |layout: &Path| fs::read_dir(layout.join("blobs/sha256")).unwrap().count();
    // The manifests and configurations.
    assert_eq!(count(&both), count(&alone) + 2 * first.len());
}

#[test]
fn another_time_of_creation_is_named() {
    let directory = TempDir::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
    assemble(&release(&a, program(b""))).unwrap();
    assemble(&Release { created: 1_700_000_001, ..release(&b, program(b"")) }).unwrap();
    let differences = compare(&a, &b).unwrap();
    assert!(differences.iter().any(|line| line.starts_with("layer 1: etc/passwd: ")), "{differences:?}");
    let error = fails(|release| release.created = u64::MAX);
    assert_eq!(
        error,
        "the time 18446744073709551615 is not in the years 1970 to 9999, in seconds since 1970"
    );
}

#[test]
fn images_have_the_files_that_they_need_and_no_others() {
    let directory = TempDir::new().unwrap();
    let layout = directory.path();
    let code = program(b"");
    assemble(&release(layout, code)).unwrap();
    let manifests = manifests(layout);
    let controller = files(layout, &manifests["cofferdam:0.1.0"]);
    let node = files(layout, &manifests["cofferdam-node:0.1.0"]);

    assert_eq!(controller["usr/bin/cofferdam"].0, 0o755);
    assert_eq!(controller["lib64"].1, "-> usr/lib64");
    assert_eq!(controller["etc/ssl/certs/ca-certificates.crt"], (0o644, "a\nb\n".to_owned()));
    assert_eq!(controller["etc/group"].1, "root:x:0:\nnonroot:x:65532:\n");
    assert_eq!(controller["usr/share/doc/libgcc-s1"].1, "-> gcc-12-base");
    assert!(
        controller["var/lib/dpkg/status.d/libc6"]
            .1
            .starts_with("Package: libc6\nVersion: 1:2.36-9+deb12u1\n")
    );
    for path in [
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "usr/lib/x86_64-linux-gnu/libc.so.6",
        "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
        "usr/lib/os-release",
        "usr/share/doc/gcc-12-base/copyright",
    ] {
        assert!(controller.contains_key(path), "{path} is missing");
    }
    let tools: Vec<&String> = node.keys().filter(|path| !controller.contains_key(*path)).collect();
    assert_eq!(
        tools,
        [
            "etc/mke2fs.conf",
            "usr/lib/x86_64-linux-gnu/libext2fs.so.2",
            "usr/lib/x86_64-linux-gnu/libext2fs.so.2.4",
            "usr/sbin/mke2fs",
            "usr/sbin/mkfs.ext4",
            "usr/share/doc/e2fsprogs/",
            "usr/share/doc/e2fsprogs/copyright",
            "var/lib/dpkg/status.d/e2fsprogs",
        ]
    );
    for path in ["libunused.so.1", "e2scrub", "bin/sh", "A.crt"] {
        assert!(!node.keys().any(|file| file.ends_with(path)), "{path} is in the image");
    }
}

#[test]
fn sidecars_share_all_layers_with_the_controller() {
    let directory = TempDir::new().unwrap();
    let layout = directory.path();
    assemble(&release(layout, program(b""))).unwrap();
    let manifests = manifests(layout);
    assert_eq!(manifests.len(), 2 + SIDECARS.len());
    let controller = &manifests["cofferdam:0.1.0"];
    let config = |manifest: &Value| json(&blob(layout, &manifest["config"]))["config"].clone();
    assert_eq!(config(controller)["Entrypoint"], serde_json::json!(["/usr/bin/cofferdam"]));
    assert_eq!(config(controller)["User"], "65532:65532");
    for name in SIDECARS {
        let manifest = &manifests[&format!("{name}:0.1.0")];
        assert_eq!(manifest["layers"], controller["layers"]);
        assert_eq!(manifest["annotations"]["org.opencontainers.image.title"], name);
        assert_eq!(config(manifest)["Entrypoint"], serde_json::json!([format!("/{name}")]));
        let user = if name == "snapshot-controller" { "65532:65532" } else { "0:0" };
        assert_eq!(config(manifest)["User"], user, "{name}");
        assert_eq!(files(layout, manifest)[name].1, "-> usr/bin/cofferdam");
    }
    let node = manifests["cofferdam-node:0.1.0"]["layers"].as_array().unwrap();
    assert_eq!(node[..2], controller["layers"].as_array().unwrap()[..]);
    let index = json(&layout.join("index.json"));
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "localhost/cofferdam:0.1.0");
    assert_eq!(
        index["manifests"][0]["platform"],
        serde_json::json!({"architecture": "amd64", "os": "linux"})
    );
}

#[test]
fn the_bill_of_materials_lists_crates_and_packages() {
    let directory = TempDir::new().unwrap();
    let report = assemble(&release(directory.path(), program(b""))).unwrap();
    let bom = json(&directory.path().join("sbom/cofferdam.cdx.json"));
    let components = bom["components"].as_array().unwrap();
    let purl = |name: &str| {
        let component = components.iter().find(|component| component["name"] == name);
        component.unwrap_or_else(|| panic!("{name} is missing"))["purl"].as_str()
    };
    assert_eq!(purl("ring"), Some("pkg:cargo/ring@0.17.14"));
    assert_eq!(purl("cc"), Some("pkg:cargo/cc@1.2.0%2Ba"));
    assert_eq!(purl("cofferdam"), None, "the program is not a crate of crates.io");
    let libc = "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12&upstream=glibc%402.36";
    assert_eq!(purl("libc6"), Some(libc));
    assert!(!components.iter().any(|component| component["name"] == "e2fsprogs"));
    let cc = components.iter().find(|component| component["name"] == "cc").unwrap();
    assert_eq!(cc["scope"], "excluded");
    let dependencies = bom["dependencies"].as_array().unwrap();
    let program = dependencies.iter().find(|of| of["ref"] == "local:cofferdam@0.1.0").unwrap();
    let expected = serde_json::json!(["pkg:cargo/cc@1.2.0%2Ba", "pkg:cargo/ring@0.17.14"]);
    assert_eq!(program["dependsOn"], expected);
    let digest = report.images[0].digest.trim_start_matches("sha256:");
    let serial = bom["serialNumber"].as_str().unwrap();
    assert!(serial.starts_with(&format!("urn:uuid:{}-{}-8", &digest[..8], &digest[8..12])), "{serial}");
    let node = json(&directory.path().join("sbom/cofferdam-node.cdx.json"));
    assert!(node["components"].as_array().unwrap().iter().any(|component| component["name"] == "e2fsprogs"));
}

#[test]
fn what_cannot_run_in_the_image_is_refused_by_name() {
    let error = fails(|release| release.binary = Elf { machine: AARCH64, ..Elf::default() }.bytes());
    assert_eq!(error, "target/release/cofferdam is built for arm64, and the packages are for amd64");
    let error = fails(|release| release.binary = b"#!/bin/sh\n".to_vec());
    assert!(
        error.starts_with("target/release/cofferdam: ") && error.contains("expected a 64-bit ELF file"),
        "{error}"
    );
    let error = fails(|release| {
        let needed = &[("libssl.so.3", "OPENSSL_3.0.0")];
        release.binary = Elf { needed, crates: Some(fixture::CRATES), ..Elf::default() }.bytes();
    });
    assert_eq!(
        error,
        "target/release/cofferdam needs libssl.so.3, which no package of \
         libc6, libgcc-s1, gcc-12-base, ca-certificates has"
    );
    let error = fails(|release| {
        let needed = &[("libc.so.6", "GLIBC_2.39")];
        release.binary = Elf { needed, crates: Some(fixture::CRATES), ..Elf::default() }.bytes();
    });
    let expected =
        "target/release/cofferdam needs GLIBC_2.39 of libc.so.6, which libc6 1:2.36-9+deb12u1 does not have";
    assert!(error.starts_with(expected), "{error}");
    let error = fails(|release| release.packages.node_programs.push("/usr/sbin/e2scrub".to_owned()));
    assert_eq!(
        error,
        "/usr/sbin/e2scrub of the package e2fsprogs is a script for /bin/bash; the images have no interpreter"
    );
    let error = fails(|release| release.packages.node_programs.push("/usr/sbin/mkfs.xfs".to_owned()));
    assert!(error.starts_with("no package of libc6, "), "{error}");
    assert!(error.ends_with(" has /usr/sbin/mkfs.xfs"), "{error}");
    let error = fails(|release| release.packages.node.push(fixture::package("xfsprogs", "", &[])));
    assert_eq!(error, "no image needs a file of the package xfsprogs: remove its pin");
}

#[test]
fn a_program_without_a_list_of_crates_is_refused_unless_none_is_wanted() {
    let plain =
        || Elf { needed: &[("libc.so.6", "GLIBC_2.34"), ("libgcc_s.so.1", "GCC_3.0")], ..Elf::default() };
    let error = fails(|release| release.binary = plain().bytes());
    assert!(error.starts_with("target/release/cofferdam has no section .dep-v0"), "{error}");
    let error = fails(|release| release.binary = Elf { crates: Some("{"), ..plain() }.bytes());
    assert!(error.starts_with("the list of crates of target/release/cofferdam: "), "{error}");
    let list = r#"{"packages":[{"name":"a","version":"1","source":"local","dependencies":[1],"root":true}]}"#;
    let error = fails(|release| release.binary = Elf { crates: Some(list), ..plain() }.bytes());
    assert!(error.ends_with("a dependency has the index 1, expected less than 1"), "{error}");

    let directory = TempDir::new().unwrap();
    let loader = Some("/lib64/ld-linux-x86-64.so.2");
    let release = release(directory.path(), Elf { loader, ..plain() }.bytes());
    assemble(&Release { crates: CrateList::Omitted, ..release }).unwrap();
    let bom = json(&directory.path().join("sbom/cofferdam.cdx.json"));
    assert_eq!(bom["components"].as_array().unwrap().len(), 5, "four packages and the distribution");
}

#[test]
fn a_directory_of_other_files_is_not_overwritten() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("index.json"), "mine").unwrap();
    let error = assemble(&release(directory.path(), program(b""))).unwrap_err().to_string();
    assert!(error.ends_with("expected an empty directory or an earlier image layout"), "{error}");
    assert_eq!(fs::read(directory.path().join("index.json")).unwrap(), b"mine");
}

#[test]
fn an_image_is_made_from_a_directory() {
    let directory = TempDir::new().unwrap();
    let (root, layout) = (directory.path().join("root"), directory.path().join("layout"));
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::write(root.join("bin/tool"), "tool").unwrap();
    std::os::unix::fs::symlink("tool", root.join("bin/sh")).unwrap();
    let tree = FileTree::read_directory(&root).unwrap();
    assert_eq!(tree.get("bin/sh"), Some(&Entry::symlink("tool")));

    let layer = Layer::new("tools", &tree, 1_700_000_000).unwrap();
    let mut writer = Layout::create(&layout, Architecture::Arm64, 1_700_000_000).unwrap();
    let image = Image { name: "tools:1".to_owned(), command: vec!["/bin/sh".to_owned()], ..Image::default() };
    writer.add_image(&image, &[&layer]).unwrap();
    writer.finish().unwrap();
    let manifest = &manifests(&layout)["tools:1"];
    let files = files(&layout, manifest);
    let names: Vec<&String> = files.keys().collect();
    assert_eq!(names, ["bin/", "bin/sh", "bin/tool", "tmp/"]);
    let config = json(&blob(&layout, &manifest["config"]));
    assert_eq!(config["architecture"], "arm64");
    assert_eq!(config["config"]["Cmd"], serde_json::json!(["/bin/sh"]));

    let archive = directory.path().join("tools.tar");
    write_archive(&layout, &archive).unwrap();
    let mut archive = tar::Archive::new(fs::File::open(archive).unwrap());
    let entries =
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
    let entries: Vec<String> = entries.collect();
    assert_eq!(entries[..2], ["oci-layout", "index.json"]);
    assert_eq!(entries.len(), 5, "{entries:?}");
    assert!(entries[2..].iter().all(|entry| entry.starts_with("blobs/sha256/")), "{entries:?}");
}
