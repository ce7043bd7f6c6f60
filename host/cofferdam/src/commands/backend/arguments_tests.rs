//! Command lines and the requests that they produce.

use clap::Parser as _;
use cofferdam_domain::{ReclaimPolicy, storage::CsiAccessMode};

use super::*;
use crate::cli::backend::ArgumentFlags;

#[derive(Debug, clap::Parser)]
struct TestCommand {
    #[command(flatten)]
    arguments: ArgumentFlags,
}

fn parse(flags: &[&str]) -> Result<Arguments, clap::Error> {
    let line = TestCommand::try_parse_from([&["line"], flags].concat())?;
    Ok(Arguments::new("volumes.create".to_owned(), line.arguments))
}

fn parse_create_request(flags: &[&str]) -> Result<CreateVolume, Box<dyn std::error::Error>> {
    let mut arguments = parse(&[&["--volume-name", "a", "--size", "1Gi"], flags].concat())?;
    let creation = arguments.create_request()?;
    arguments.reject_unused()?;
    Ok(creation)
}

#[test]
fn an_owner_flag_needs_cluster_claim_and_volume() {
    let owner = parse_create_request(&["--owner", "cluster=c,claim=u,volume=pvc-u,reclaim-policy=retain"])
        .unwrap()
        .owner;
    let owner = owner.unwrap();
    assert_eq!(
        (owner.cluster_id.as_str(), &owner.claim_uid, owner.pv_name.as_str()),
        ("c", &"u".into(), "pvc-u")
    );
    assert_eq!(owner.reclaim_policy, ReclaimPolicy::Retain);
    let owner = parse_create_request(&["--owner", "volume=v,claim=u,cluster=c"]).unwrap().owner.unwrap();
    assert_eq!(owner.reclaim_policy, ReclaimPolicy::Delete);
    for (text, expected) in [
        ("cluster=c,claim=u", "expected volume=…"),
        ("cluster=c,claim=u,volume=v,reclaim-policy=keep", "expected delete or retain"),
        ("cluster=c,cluster=d,claim=u,volume=v", "cluster=… was set twice"),
        ("clusters=c,claim=u,volume=v", "expected cluster, claim, volume or reclaim-policy"),
    ] {
        let error = parse_create_request(&["--owner", text]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(parse_create_request(&[]).unwrap().owner.is_none());
}

#[test]
fn a_snapshot_owner_flag_needs_cluster_snapshot_and_content() {
    let owner =
        |text: &str| parse(&["--snapshot-owner", text]).map(|mut flags| flags.snapshot_owner().unwrap());
    let retained = owner("cluster=c,snapshot=u,content=snapcontent-u,deletion-policy=retain").unwrap();
    assert_eq!(
        (retained.cluster_id.as_str(), &retained.snapshot_uid, retained.content_name.as_str()),
        ("c", &"u".into(), "snapcontent-u")
    );
    assert!(retained.retain);
    assert!(!owner("content=n,snapshot=u,cluster=c").unwrap().retain);
    for (text, expected) in [
        ("cluster=c,snapshot=u", "expected content=…"),
        ("cluster=c,snapshot=u,content=n,deletion-policy=keep", "expected delete or retain"),
        ("cluster=c,claim=u,content=n", "\"claim\": expected cluster, snapshot, content or deletion-policy"),
    ] {
        let error = owner(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(parse(&[]).unwrap().snapshot_owner(), None);
}

#[test]
fn repeated_capability_flags_are_parsed() {
    let filesystem = |fs_type: Option<&str>, flags: &[&str], group: Option<&str>| AccessType::Filesystem {
        fs_type: fs_type.map(str::to_owned),
        mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        mount_group: group.map(str::to_owned),
    };
    let several = [
        "--capability",
        "multi-node-multi-writer,block",
        "--capability",
        "single-node-writer,fs-type=xfs,mount-flag=ro,mount-flag=uid=7,mount-group=1000",
        "--capability",
        "multi-node-reader-only",
    ];
    assert_eq!(
        parse_create_request(&several).unwrap().capabilities,
        [
            VolumeCapability {
                access_mode: CsiAccessMode::MultiNodeMultiWriter,
                access_type: AccessType::Block
            },
            VolumeCapability {
                access_mode: CsiAccessMode::SingleNodeWriter,
                access_type: filesystem(Some("xfs"), &["ro", "uid=7"], Some("1000")),
            },
            VolumeCapability {
                access_mode: CsiAccessMode::MultiNodeReaderOnly,
                access_type: filesystem(None, &[], None),
            },
        ]
    );
    let capabilities = parse_create_request(&["--mount-group", "7"]).unwrap().capabilities;
    let mounted = filesystem(None, &[], Some("7"));
    assert_eq!(
        capabilities,
        [VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type: mounted }]
    );
    for (flags, expected) in [
        (&["--capability", "everybody,block"][..], "expected one of single-node-writer"),
        (&["--capability", "single-node-writer,block,fs-type=ext4"], "expected block alone"),
        (&["--capability", "single-node-writer,block", "--block"], "cannot be used with"),
        (&["--mount-group", "7", "--block"], "cannot be used with"),
    ] {
        let error = parse_create_request(flags).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_function_with_one_capability_rejects_a_second() {
    let two = ["--capability", "single-node-writer,block", "--capability", "single-node-writer"];
    let refused = "volumes.create takes one --capability";
    assert_eq!(parse(&two).unwrap().capability().unwrap_err().to_string(), refused);
    assert_eq!(parse(&two).unwrap().optional_capability().unwrap_err().to_string(), refused);
    assert_eq!(parse(&[]).unwrap().optional_capability().unwrap(), None);
    assert!(parse(&two[..2]).unwrap().optional_capability().unwrap().is_some());
    let left = parse(&["--mount-group", "7"]).unwrap().reject_unused().unwrap_err().to_string();
    assert_eq!(left, "volumes.create has no argument --mount-group");
    let left =
        parse(&["--owner", "cluster=c,claim=u,volume=v"]).unwrap().reject_unused().unwrap_err().to_string();
    assert_eq!(left, "volumes.create has no argument --owner");
}
