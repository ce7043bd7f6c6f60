//! Tests of the driver on the mock host, with answers of EC2.

use std::{cell::RefCell, rc::Rc, time::Duration};

use cofferdam_guest::{
    CapacityRange, ConnectionInfo, ErrorKind, Finality, TopologyRequirement,
    abilities::{
        ExpandRequest, Expansion, Listing, Modification, PublishRequest, Publishing, Restoring,
        SnapshotRequest, Snapshots,
    },
    http::{Failure, HttpError, Method, Request, Response},
    idempotent::CreationTokens,
    mock::{MockHost, ReceivedRequest},
    time,
};

use super::*;
use crate::sign::sign;

const GIB: u64 = 1 << 30;
/// The time at which the volumes of these tests were created, in milliseconds.
const CREATED_AT: u64 = 1_767_268_800_000;
const URL: &str = "https://ec2.us-east-1.amazonaws.com/";

/// A host with the settings and the secret of the driver.
fn host() -> MockHost {
    MockHost::new()
        .setting("endpoint", URL)
        .setting("region", "us-east-1")
        .setting("access-key-id", "AKIDEXAMPLE")
        .secret("secret-access-key", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
}

fn answer(action: &str, content: &str) -> Response {
    let body = format!("<{action}Response><requestId>r</requestId>{content}</{action}Response>");
    Response::new(200).with_header("content-type", "text/xml;charset=UTF-8").with_body(body)
}

fn refusal(status: u16, code: &str) -> Response {
    let error = format!("<Error><Code>{code}</Code><Message>said EC2</Message></Error>");
    Response::new(status).with_body(format!("<Response><Errors>{error}</Errors></Response>"))
}

/// Answers an action: the answers in turn, the last one for ever.
fn on(host: MockHost, action: &'static str, answers: Vec<Response>) -> MockHost {
    let mut answers = answers.into_iter().peekable();
    let mut last = Response::new(500);
    host.on_matching(
        Method::Post,
        URL,
        move |request| request.form_value("Action").as_deref() == Some(action),
        move |_| {
            last = answers.next().unwrap_or_else(|| last.clone());
            Ok(last.clone())
        },
    )
}

fn described(action: &str, list: &str, items: &[String]) -> Response {
    let items: String = items.iter().map(|item| format!("<item>{item}</item>")).collect();
    answer(action, &format!("<{list}>{items}</{list}>"))
}

fn volumes(items: &[String]) -> Response {
    described("DescribeVolumes", "volumeSet", items)
}

/// A volume with tags and attachments in XML.
fn volume(id: &str, gib: u64, more: &str) -> String {
    format!(
        "<volumeId>{id}</volumeId><status>available</status><size>{gib}</size><volumeType>gp3</volumeType>\
         <iops>3000</iops><availabilityZone>us-east-1a</availabilityZone>\
         <createTime>2026-01-01T12:00:00.000Z</createTime>{more}"
    )
}

/// The tag of a volume that was created for a block device, with these parameters.
fn created_with(parameters: &str) -> String {
    let tag = format!("<key>cofferdam.dev/request</key><value>{parameters} single-node-writer block</value>");
    format!("<tagSet><item>{tag}</item></tagSet>")
}

fn attached(instance: &str, node: &str) -> String {
    format!(
        "<attachmentSet><item><instanceId>{instance}</instanceId><device>/dev/xvdba</device>\
         <status>attached</status></item></attachmentSet><tagSet><item>\
         <key>cofferdam.dev/node/{instance}</key><value>{node}</value></item></tagSet>"
    )
}

fn snapshot(id: &str, source: &str, gib: u64, second: u32) -> String {
    format!(
        "<snapshotId>{id}</snapshotId><volumeId>{source}</volumeId><status>completed</status>\
         <volumeSize>{gib}</volumeSize><startTime>2026-01-01T11:00:{second:02}.000Z</startTime>"
    )
}

fn snapshots(items: &[String]) -> Response {
    described("DescribeSnapshots", "snapshotSet", items)
}

fn create_request(gib: u64) -> CreateRequest {
    let zone = vec![(ZONE_KEY.to_owned(), "us-east-1a".to_owned())];
    let topology = TopologyRequirement { requisite: vec![zone], preferred: Vec::new() };
    CreateRequest { topology: Some(topology), ..CreateRequest::new("pvc-1", gib * GIB) }
}

fn publish_request(node: &str, provider_id: Option<&str>) -> PublishRequest {
    PublishRequest {
        handle: "vol-0a".to_owned(),
        node: node.to_owned(),
        node_identities: provider_id
            .map(|id| ("provider-id".to_owned(), id.to_owned()))
            .into_iter()
            .collect(),
        capability: create_request(1).capabilities.remove(0),
        read_only: false,
        context: Vec::new(),
    }
}

/// The actions that were sent, without those that describe.
fn changes(requests: &[ReceivedRequest]) -> Vec<String> {
    let actions = requests.iter().filter_map(|request| request.form_value("Action"));
    actions.filter(|action| !action.starts_with("Describe")).collect()
}

fn values(requests: &[ReceivedRequest], action: &str, key: &str) -> Vec<String> {
    let sent = requests.iter().filter(|request| request.form_value("Action").as_deref() == Some(action));
    sent.filter_map(|request| request.form_value(key)).collect()
}

#[test]
fn the_signature_is_that_of_the_test_suite_of_aws() {
    let scope = ["us-east-1", "service"];
    // `post-x-www-form-urlencoded` and `post-vanilla` of the suite that AWS publishes for Signature Version 4.
    let host = MockHost::new()
        .start_time(1_440_938_160_000)
        .secret("secret-access-key", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
        .on(Method::Post, "https://example.amazonaws.com/", |_| Ok(Response::new(200)))
        .install();
    let post = || Request::post("https://example.amazonaws.com/");
    post().form(&[("Param1", "value1")]).sign_with(|sent| sign(sent, "AKIDEXAMPLE", scope)).send().unwrap();
    post().sign_with(|sent| sign(sent, "AKIDEXAMPLE", scope)).send().unwrap();
    let headers: Vec<_> =
        host.requests().iter().map(|sent| sent.header("authorization").unwrap().to_owned()).collect();
    let credential = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request";
    assert_eq!(
        headers,
        [
            format!(
                "{credential}, SignedHeaders=content-type;host;x-amz-date, \
                 Signature=ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"
            ),
            format!(
                "{credential}, SignedHeaders=host;x-amz-date, \
                 Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
            ),
        ]
    );
    assert_eq!(host.revealed(), [""; 0]);
}

#[test]
fn a_create_sends_size_zone_type_and_tags() {
    let found = volume("vol-0a", 2, &created_with(r#"{"Encrypted": "true", "VolumeType": "gp2"}"#));
    let host = on(host(), "DescribeVolumes", vec![volumes(&[]), volumes(std::slice::from_ref(&found))]);
    let host = on(host, "CreateVolume", vec![answer("CreateVolume", &found)]).install();
    let request = CreateRequest {
        parameters: vec![("type".into(), "gp2".into()), ("encrypted".into(), "true".into())],
        mutable_parameters: vec![("type".into(), "io2".into()), ("iops".into(), "4000".into())],
        ..create_request(2)
    };
    let created = host.call(|| EbsDriver::create_volume(request)).unwrap();
    assert_eq!((created.handle.as_str(), created.capacity_bytes), ("vol-0a", Some(2 * GIB)));
    assert_eq!(created.topology, [[(ZONE_KEY.to_owned(), "us-east-1a".to_owned())]]);
    let requests = host.requests();
    let sent = requests.iter().find(|sent| sent.form_value("Action").unwrap() == "CreateVolume").unwrap();
    for (key, value) in [
        ("Size", "2"),
        ("AvailabilityZone", "us-east-1a"),
        ("VolumeType", "io2"),
        ("Iops", "4000"),
        ("Encrypted", "true"),
        ("TagSpecification.1.Tag.1.Value", "name-pvc-1"),
    ] {
        assert_eq!(sent.form_value(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(host.revealed(), [""; 0]);
}

#[test]
fn a_used_token_is_followed_by_the_next_one() {
    let created = volume("vol-0b", 1, &created_with("{}"));
    let deleted = answer("CreateVolume", &volume("vol-0a", 1, ""));
    for used_up in [deleted, refusal(400, "IdempotentParameterMismatch")] {
        let was_created = Rc::new(RefCell::new(false));
        let (is_listed, item) = (Rc::clone(&was_created), created.clone());
        let host = host().start_time(CREATED_AT + 120_000).on(Method::Post, URL, move |_| {
            Ok(volumes(if *is_listed.borrow() { std::slice::from_ref(&item) } else { &[] }))
        });
        let (tokens, item) = (CreationTokens::new("volume", "pvc-1"), created.clone());
        let first = tokens.token(0);
        let host = host
            .on_matching(
                Method::Post,
                URL,
                |request| request.form_value("Action").as_deref() == Some("CreateVolume"),
                move |request| {
                    if request.form_value("ClientToken").unwrap() == first {
                        return Ok(used_up.clone());
                    }
                    *was_created.borrow_mut() = true;
                    Ok(answer("CreateVolume", &item))
                },
            )
            .install();
        let volume = host.call(|| EbsDriver::create_volume(create_request(1))).unwrap();
        assert_eq!(volume.handle, "vol-0b");
        let sent = values(&host.requests(), "CreateVolume", "ClientToken");
        assert_eq!(sent, [tokens.token(0), tokens.token(1)]);
    }
}

#[test]
fn a_new_volume_that_is_not_listed_yet_does_not_use_up_its_token() {
    let host = on(host().start_time(CREATED_AT + 119_000), "DescribeVolumes", vec![volumes(&[])]);
    let host = on(host, "CreateVolume", vec![answer("CreateVolume", &volume("vol-0a", 1, ""))]).install();
    let error = host.call(|| EbsDriver::create_volume(create_request(1))).unwrap_err();
    assert_eq!(
        (error.message.as_str(), error.finality),
        ("EC2 does not list vol-0a yet", Finality::InProgress)
    );
    assert_eq!(changes(&host.requests()), ["CreateVolume"]);
}

#[test]
fn a_create_returns_the_oldest_volume_and_none_that_failed() {
    let created_at = |id: &str, minute: u32, status: &str| {
        let item = volume(id, 1, &created_with("{}")).replace("12:00", &format!("12:{minute:02}"));
        item.replace("available", status)
    };
    let found = [created_at("vol-0a", 1, "available"), created_at("vol-0b", 0, "available")];
    let host = on(
        host(),
        "DescribeVolumes",
        vec![volumes(&[&found[..], &[created_at("vol-0c", 0, "error")]].concat())],
    );
    let host = host.install();
    assert_eq!(host.call(|| EbsDriver::create_volume(create_request(1))).unwrap().handle, "vol-0b");
    // `cofferdam orphans` finds volumes that failed.
    assert_eq!(host.call(|| EbsDriver::list_volumes(None, None)).unwrap().volumes.len(), 3);
    assert_eq!(changes(&host.requests()), [""; 0]);
}

#[test]
fn a_new_volume_that_vanishes_is_explained() {
    let found = volume("vol-0a", 1, &created_with("{}")).replace("available", "creating");
    let host = on(
        host(),
        "DescribeVolumes",
        vec![volumes(&[]), volumes(std::slice::from_ref(&found)), volumes(&[])],
    );
    let host = on(host, "CreateVolume", vec![answer("CreateVolume", &found)]).install();
    let error = host.call(|| EbsDriver::create_volume(create_request(1))).unwrap_err();
    let message =
        "EC2 no longer lists vol-0a: another call has deleted it, or its KMS key cannot be used (kmsKeyId)";
    assert_eq!((error.message.as_str(), error.finality), (message, Finality::InProgress));
}

#[test]
fn a_volume_in_an_unreachable_zone_already_exists() {
    let item = volume("vol-0a", 1, &created_with("{}"));
    let host = on(host(), "DescribeVolumes", vec![volumes(&[item])]).install();
    let zone = |name: &str| vec![(ZONE_KEY.to_owned(), name.to_owned())];
    let create = |requisite: &[&str], preferred: &str| {
        let requisite = requisite.iter().map(|name| zone(name)).collect();
        let topology = Some(TopologyRequirement { requisite, preferred: vec![zone(preferred)] });
        host.call(|| EbsDriver::create_volume(CreateRequest { topology, ..create_request(1) }))
    };
    create(&[], "us-east-1b").unwrap();
    create(&["us-east-1b", "us-east-1a"], "us-east-1b").unwrap();
    let error = create(&["us-east-1b"], "us-east-1b").unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
    assert_eq!(error.message, r#"the volume "pvc-1" exists: its zone is "us-east-1a", not "us-east-1b""#);
}

#[test]
fn a_delete_does_not_depend_on_the_listing() {
    let deleted = vec![
        answer("DeleteVolume", ""),
        refusal(400, "InvalidVolume.NotFound"),
        refusal(400, "IncorrectState"),
        refusal(400, "IncorrectState"),
    ];
    let item = volume("vol-0a", 1, "");
    let listed = vec![
        volumes(&[]),
        volumes(&[item.replace("available", "deleting")]),
        volumes(&[item.replace("available", "creating")]),
    ];
    let host = on(on(host(), "DeleteVolume", deleted), "DescribeVolumes", listed);
    let host = on(host, "DeleteSnapshot", vec![answer("DeleteSnapshot", "")]).install();
    let delete = |handle: &str| host.call(|| EbsDriver::delete_volume(handle.to_owned()));
    for handle in ["vol-0a", "vol-0a", "vol-0a", "vol-", "vol-0x", "", "snap-0a"] {
        delete(handle).unwrap();
    }
    assert_eq!(delete("vol-0a").unwrap_err().finality, Finality::InProgress, "EC2 still creates it");
    for handle in ["snap-0b", "vol-0b"] {
        host.call(|| EbsDriver::delete_snapshot(handle.to_owned())).unwrap();
    }
    assert_eq!(values(&host.requests(), "DeleteVolume", "VolumeId"), ["vol-0a"; 4]);
    assert_eq!(values(&host.requests(), "DeleteSnapshot", "SnapshotId"), ["snap-0b"]);
}

#[test]
fn a_restored_volume_is_as_large_as_its_snapshot() {
    let from_snapshot = format!("<snapshotId>snap-0a</snapshotId>{}", created_with("{}"));
    let found = volume("vol-0b", 3, &from_snapshot);
    let host = on(host(), "DescribeVolumes", vec![volumes(&[]), volumes(std::slice::from_ref(&found))]);
    let host = on(host, "DescribeSnapshots", vec![snapshots(&[snapshot("snap-0a", "vol-0a", 3, 0)])]);
    let host = on(host, "CreateVolume", vec![answer("CreateVolume", &found)]).install();
    let restore = |request| host.call(|| EbsDriver::create_from_snapshot(request, "snap-0a".to_owned()));
    assert_eq!(restore(create_request(1)).unwrap().capacity_bytes, Some(3 * GIB));
    assert_eq!(values(&host.requests(), "CreateVolume", "SnapshotId"), ["snap-0a"]);
    assert_eq!(values(&host.requests(), "CreateVolume", "Size"), ["3"]);

    let host = on(
        on(super::tests::host(), "DescribeVolumes", vec![volumes(&[])]),
        "DescribeSnapshots",
        vec![snapshots(&[snapshot("snap-0a", "vol-0a", 3, 0)]), snapshots(&[])],
    )
    .install();
    let restore = |request| host.call(|| EbsDriver::create_from_snapshot(request, "snap-0a".to_owned()));
    let capacity = CapacityRange { required_bytes: None, limit_bytes: Some(2 * GIB) };
    let too_small = restore(CreateRequest { capacity, ..create_request(1) }).unwrap_err();
    assert_eq!((too_small.kind, too_small.finality), (ErrorKind::OutOfRange, Finality::Final));
    let missing = restore(create_request(3)).unwrap_err();
    assert_eq!((missing.kind, missing.finality), (ErrorKind::NotFound, Finality::Final));
}

#[test]
fn a_name_with_another_source_already_exists() {
    let found = volume("vol-0a", 1, &format!("<snapshotId>snap-0b</snapshotId>{}", created_with("{}")));
    let host = on(host(), "DescribeVolumes", vec![volumes(&[found])]).install();
    let error = host.call(|| EbsDriver::create_volume(create_request(1))).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final));
    assert_eq!(error.message, r#"the volume "pvc-1" exists: its snapshot is "snap-0b", not """#);
    assert_eq!(changes(&host.requests()), [""; 0]);
}

#[test]
fn wrong_answers_are_errors_that_say_what_to_do() {
    let page = "<html><head><title>503 Service Unavailable</title></head></html>";
    let html = |status| Response::new(status).with_header("content-type", "text/html").with_body(page);
    let late = time::to_http_date(Duration::from_millis(CREATED_AT) + Duration::from_secs(3600));
    let half = Response::new(200).with_body("<CreateVolumeResponse><volumeId>vol-0a</vol");
    let check = "check `access-key-id`, `secret-access-key` and the clock of this machine";
    #[rustfmt::skip] // one row a case
    let table = [
        (html(503),                              ErrorKind::Unavailable,        Finality::Unknown, "HTML page"),
        (html(200),                              ErrorKind::Internal,           Finality::Unknown, "HTML page"),
        (half,                                   ErrorKind::Internal,           Finality::Unknown, "not readable"),
        (refusal(400, "InvalidParameterValue"),  ErrorKind::InvalidArgument,    Finality::Final,   "CreateVolume: InvalidParameterValue: said EC2"),
        (refusal(400, "VolumeLimitExceeded"),    ErrorKind::ResourceExhausted,  Finality::Final,   "VolumeLimitExceeded"),
        (refusal(400, "InvalidZone.NotFound"),   ErrorKind::InvalidArgument,    Finality::Final,   "InvalidZone"),
        (refusal(400, "IncorrectInstanceState"), ErrorKind::FailedPrecondition, Finality::Final,   "IncorrectInstanceState"),
        (refusal(400, "IncorrectModificationState"), ErrorKind::Aborted,        Finality::InProgress, "IncorrectModificationState"),
        (refusal(400, "VolumeModificationRateExceeded"), ErrorKind::Unavailable, Finality::Final,  "VolumeModificationRateExceeded"),
        (refusal(400, "Throttling"),             ErrorKind::Unavailable,        Finality::Final,   "Throttling"),
        (refusal(503, "RequestLimitExceeded"),   ErrorKind::Unavailable,        Finality::Final,   "RequestLimitExceeded"),
        (refusal(503, "Unavailable"),            ErrorKind::Unavailable,        Finality::Final,   "Unavailable"),
        (refusal(500, "InsufficientVolumeCapacity"), ErrorKind::ResourceExhausted, Finality::Final, "InsufficientVolumeCapacity"),
        (refusal(500, "InternalError"),          ErrorKind::Internal,           Finality::Unknown, "InternalError"),
        (refusal(403, "UnauthorizedOperation"),  ErrorKind::PermissionDenied,   Finality::Final,   "UnauthorizedOperation"),
        (refusal(401, "AuthFailure"),            ErrorKind::Unauthenticated,    Finality::Final,   check),
        (refusal(403, "SignatureDoesNotMatch"),  ErrorKind::Unauthenticated,    Finality::Final,   check),
        (refusal(400, "RequestExpired").with_header("date", &late),
                                                 ErrorKind::Unauthenticated,    Finality::Final,   "clock is 3600 s ahead"),
    ];
    for (answer, kind, finality, message) in table {
        let host = on(host().start_time(CREATED_AT), "DescribeVolumes", vec![volumes(&[])]);
        let host = on(host, "CreateVolume", vec![answer.clone()]).install();
        let error = host.call(|| EbsDriver::create_volume(create_request(1))).unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, finality), "{}", error.message);
        assert!(error.message.contains(message), "{}: expected {message}", error.message);
        let is_refused = kind == ErrorKind::Unavailable && finality == Finality::Final;
        assert_eq!(error.retry_after_ms.is_some(), is_refused, "{}", error.message);
    }
}

#[test]
fn a_lookup_without_an_answer_is_never_final() {
    let host =
        host().on(Method::Post, URL, |_| Err(HttpError::lost(Failure::Timeout, "no answer"))).install();
    let error = host.call(|| EbsDriver::create_volume(create_request(1))).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Finality::Unknown));
}

#[test]
fn a_volume_is_tagged_with_its_node_and_attached() {
    let attached_volume = volume("vol-0a", 1, &attached("i-0a", "node-1"));
    let host = on(
        host(),
        "DescribeVolumes",
        vec![volumes(&[volume("vol-0a", 1, "")]), volumes(&[]), volumes(&[attached_volume])],
    );
    let host = on(host, "CreateTags", vec![answer("CreateTags", "")]);
    let host = on(host, "AttachVolume", vec![answer("AttachVolume", "")]).install();
    let provider_id = Some("aws:///us-east-1a/i-0a");
    let info = host.call(|| EbsDriver::publish(publish_request("node-1", provider_id))).unwrap();
    assert_eq!(info, ConnectionInfo::local_device("nvme-Amazon_Elastic_Block_Store_vol0a"));
    assert_eq!(changes(&host.requests()), ["CreateTags", "AttachVolume"]);
    assert_eq!(values(&host.requests(), "AttachVolume", "InstanceId"), ["i-0a"]);
    host.call(|| EbsDriver::publish(publish_request("node-1", provider_id))).unwrap();
    assert_eq!(changes(&host.requests()).len(), 2, "it is attached");
    let elsewhere = host.call(|| EbsDriver::publish(publish_request("i-0b", None))).unwrap_err();
    assert_eq!((elsewhere.kind, elsewhere.finality), (ErrorKind::FailedPrecondition, Finality::Final));
}

#[test]
fn a_volume_is_detached_from_its_node_only() {
    let host = on(
        host(),
        "DescribeVolumes",
        vec![
            volumes(&[volume("vol-0a", 1, &attached("i-0a", "node-1"))]),
            volumes(&[volume("vol-0a", 1, &attached("i-0a", "node-1"))]),
            volumes(&[volume("vol-0a", 1, &attached("i-0a", "node-1"))]),
            volumes(&[volume("vol-0a", 1, "")]),
        ],
    );
    let host = on(host, "DetachVolume", vec![answer("DetachVolume", "")]);
    let host = on(host, "DeleteTags", vec![answer("DeleteTags", "")]).install();
    let unpublish = |node: &str| host.call(|| EbsDriver::unpublish("vol-0a".into(), Some(node.into())));
    unpublish("node-2").unwrap();
    assert_eq!(changes(&host.requests()), [""; 0]);
    unpublish("node-1").unwrap();
    assert_eq!(changes(&host.requests()), ["DetachVolume", "DeleteTags"]);
    assert_eq!(values(&host.requests(), "DeleteTags", "Tag.1.Key"), ["cofferdam.dev/node/i-0a"]);
}

#[test]
fn a_volume_is_detached_by_its_tags_if_the_listing_lacks_its_attachment() {
    let tag = |instance: &str, node: &str| {
        format!("<item><key>cofferdam.dev/node/{instance}</key><value>{node}</value></item>")
    };
    let tags = format!(
        "<tagSet>{}{}{}</tagSet>",
        tag("i-0a", "node-1"),
        tag("i-0b", "node-1"),
        tag("i-0c", "node-2")
    );
    let host = on(host(), "DescribeVolumes", vec![volumes(&[volume("vol-0a", 1, &tags)])]);
    let detached = vec![answer("DetachVolume", ""), refusal(400, "IncorrectState")];
    let host = on(on(host, "DetachVolume", detached), "DeleteTags", vec![answer("DeleteTags", "")]).install();
    host.call(|| EbsDriver::unpublish("vol-0a".to_owned(), Some("node-1".to_owned()))).unwrap();
    assert_eq!(changes(&host.requests()), ["DetachVolume", "DetachVolume", "DeleteTags", "DeleteTags"]);
    assert_eq!(values(&host.requests(), "DetachVolume", "InstanceId"), ["i-0a", "i-0b"]);
}

#[test]
fn a_device_name_that_another_call_took_is_followed_by_the_next_one() {
    let attached_volume = volume("vol-0a", 1, &attached("i-0a", "i-0a"));
    let in_use = Response::new(400).with_body(
        "<Response><Errors><Error><Code>InvalidParameterValue</Code><Message>Invalid value '/dev/xvdba' for \
         unixDevice. Attachment point /dev/xvdba is already in use</Message></Error></Errors></Response>",
    );
    let taken = |attempts: Vec<Response>| {
        let listed = vec![
            volumes(&[volume("vol-0a", 1, "")]),
            volumes(&[]),
            volumes(std::slice::from_ref(&attached_volume)),
        ];
        let host = on(on(host(), "DescribeVolumes", listed), "CreateTags", vec![answer("CreateTags", "")]);
        let host = on(host, "AttachVolume", attempts).install();
        let result = host.call(|| EbsDriver::publish(publish_request("i-0a", None)));
        (result, values(&host.requests(), "AttachVolume", "Device"))
    };
    let (published, devices) = taken(vec![in_use.clone(), answer("AttachVolume", "")]);
    published.unwrap();
    assert!(devices.len() == 2 && devices[0] != devices[1], "{devices:?}");
    let (refused, devices) = taken(vec![in_use]);
    assert_eq!((refused.unwrap_err().kind, devices.len()), (ErrorKind::Unavailable, 5));
}

/// Answers of DescribeVolumesModifications with one modification each, or none.
fn modifications(states: &[&str]) -> Vec<Response> {
    let described = |state: &&str| {
        let item = format!("<modificationState>{state}</modificationState>");
        let items = if state.is_empty() { &[][..] } else { &[item][..] };
        described("DescribeVolumesModifications", "volumeModificationSet", items)
    };
    states.iter().map(described).collect()
}

#[test]
fn a_modification_waits_until_the_volume_shows_it() {
    let iops = |value: &str| volumes(&[volume("vol-0a", 1, "").replace("3000", value)]);
    let modify = |listed: Vec<Response>, states: &[&str], answered: Response| {
        let host = on(host(), "DescribeVolumesModifications", modifications(states));
        let host = on(on(host, "DescribeVolumes", listed), "ModifyVolume", vec![answered]).install();
        let parameters = vec![("iops".to_owned(), "04000".to_owned())];
        let result = host.call(|| EbsDriver::modify("vol-0a".to_owned(), parameters));
        (result.map_err(|error| (error.kind, error.finality)), changes(&host.requests()).len())
    };
    let accepted = || answer("ModifyVolume", "");
    let internal = Err((ErrorKind::Internal, Finality::Unknown));
    let in_progress = Err((ErrorKind::Aborted, Finality::InProgress));
    // That of another call, which made the change.
    assert_eq!(modify(vec![iops("4000")], &["modifying", ""], accepted()), (Ok(()), 0));
    // The volume shows the change after the end of the modification.
    assert_eq!(
        modify(vec![iops("3000"), iops("3000"), iops("4000")], &["", "completed"], accepted()),
        (Ok(()), 1)
    );
    assert_eq!(modify(vec![iops("3000")], &["completed"], accepted()), (in_progress, 1));
    assert_eq!(modify(vec![iops("3000")], &["", "failed"], accepted()), (internal, 1));
    let running = refusal(400, "IncorrectModificationState");
    assert_eq!(modify(vec![iops("3000")], &[""], running), (in_progress, 1));
}

#[test]
fn an_expansion_waits_for_the_modification() {
    let host = on(
        host(),
        "DescribeVolumes",
        vec![
            volumes(&[volume("vol-0a", 1, "")]),
            volumes(&[volume("vol-0a", 1, "")]),
            volumes(&[volume("vol-0a", 2, "")]),
        ],
    );
    let states = modifications(&["", "modifying", ""]);
    let host = on(host, "DescribeVolumesModifications", states);
    let host = on(host, "ModifyVolume", vec![answer("ModifyVolume", "")]).install();
    let capacity = CapacityRange { required_bytes: Some(2 * GIB), limit_bytes: None };
    let request = ExpandRequest { handle: "vol-0a".to_owned(), capacity, capability: None };
    let expanded = host.call(|| EbsDriver::expand(request)).unwrap();
    assert_eq!((expanded.capacity_bytes, expanded.node_expansion), (2 * GIB, true));
    assert_eq!(values(&host.requests(), "ModifyVolume", "Size"), ["2"]);
    assert_eq!(values(&host.requests(), "DescribeVolumesModifications", "Action").len(), 3);
}

#[test]
fn a_modification_to_the_current_values_sends_nothing() {
    let host = on(host(), "DescribeVolumes", vec![volumes(&[volume("vol-0a", 1, "")])]);
    let host = on(host, "DescribeVolumesModifications", modifications(&[""])).install();
    let modify = |key: &str, value: &str| {
        host.call(|| EbsDriver::modify("vol-0a".to_owned(), vec![(key.to_owned(), value.to_owned())]))
    };
    modify("iops", "3000").unwrap();
    let unknown = modify("encrypted", "true").unwrap_err();
    assert_eq!(
        unknown.message,
        r#"unknown mutable parameter "encrypted"; known are "iops", "throughput" and "type""#
    );
    assert_eq!(changes(&host.requests()), [""; 0]);
}

#[test]
fn of_two_snapshots_of_a_name_the_older_one_stays() {
    let both = [snapshot("snap-0b", "vol-0a", 1, 2), snapshot("snap-0a", "vol-0a", 1, 1)];
    let host = on(host(), "DescribeSnapshots", vec![snapshots(&[]), snapshots(&both)]);
    let host =
        on(host, "CreateSnapshot", vec![answer("CreateSnapshot", &snapshot("snap-0b", "vol-0a", 1, 2))]);
    let host = on(host, "DeleteSnapshot", vec![answer("DeleteSnapshot", "")]).install();
    let create = |source: &str| {
        let source = source.to_owned();
        let request = SnapshotRequest { name: "s".to_owned(), source, parameters: Vec::new(), owner: None };
        host.call(|| EbsDriver::create_snapshot(request))
    };
    let taken = create("vol-0a").unwrap();
    assert_eq!((taken.handle.as_str(), taken.size_bytes, taken.ready), ("snap-0a", Some(GIB), true));
    assert_eq!(values(&host.requests(), "DeleteSnapshot", "SnapshotId"), ["snap-0b"]);
    assert_eq!(create("vol-0b").unwrap_err().kind, ErrorKind::AlreadyExists);
}

#[test]
fn a_failed_snapshot_is_deleted_and_taken_again() {
    let failed = snapshot("snap-0a", "vol-0a", 1, 1).replace("completed", "error");
    let taken = snapshot("snap-0b", "vol-0a", 1, 2);
    let host =
        on(host(), "DescribeSnapshots", vec![snapshots(&[failed]), snapshots(std::slice::from_ref(&taken))]);
    let host = on(host, "CreateSnapshot", vec![answer("CreateSnapshot", &taken)]);
    let host = on(host, "DeleteSnapshot", vec![answer("DeleteSnapshot", "")]).install();
    let (name, source) = ("s".to_owned(), "vol-0a".to_owned());
    let request = SnapshotRequest { name, source, parameters: Vec::new(), owner: None };
    assert_eq!(host.call(|| EbsDriver::create_snapshot(request)).unwrap().handle, "snap-0b");
    assert_eq!(values(&host.requests(), "DeleteSnapshot", "SnapshotId"), ["snap-0a"]);
}

#[test]
fn all_pages_are_read() {
    let page = |id: &str, next: &str| {
        let items = format!("<volumeSet><item>{}</item></volumeSet>{next}", volume(id, 1, ""));
        answer("DescribeVolumes", &items)
    };
    let pages = vec![page("vol-0b", "<nextToken>t</nextToken>"), page("vol-0a", "<nextToken/>")];
    let host = on(host(), "DescribeVolumes", pages).install();
    let listed = host.call(|| EbsDriver::list_volumes(None, None)).unwrap();
    let handles: Vec<_> = listed.volumes.iter().map(|found| found.volume.handle.as_str()).collect();
    assert_eq!((handles, listed.next), (vec!["vol-0a", "vol-0b"], None));
    assert_eq!(values(&host.requests(), "DescribeVolumes", "NextToken"), ["t"]);
}

#[test]
fn unsupported_capabilities_names_and_owners_are_refused_without_a_request() {
    let host = host().install();
    let refused = |request| host.call(|| EbsDriver::create_volume(request)).unwrap_err().kind;
    let mut reader = create_request(1);
    reader.capabilities[0].mode = cofferdam_guest::AccessMode::MultiNodeReaderOnly;
    let unnamed = CreateRequest { name: String::new(), ..create_request(1) };
    let without_zone = CreateRequest { topology: None, ..create_request(1) };
    let unknown = CreateRequest { parameters: vec![("tpye".into(), "gp3".into())], ..create_request(1) };
    let owner = cofferdam_guest::Owner {
        cluster_id: "c".repeat(200),
        claim_uid: "u".repeat(36),
        pv_name: "pvc-1".repeat(4),
        reclaim_policy: cofferdam_guest::ReclaimPolicy::Delete,
    };
    let long_owner = CreateRequest { owner: Some(owner), ..create_request(1) };
    for request in [reader, unnamed, without_zone, unknown, long_owner] {
        assert_eq!(refused(request), ErrorKind::InvalidArgument);
    }
    assert_eq!(host.requests(), []);
}

#[test]
fn probe_reports_a_missing_setting() {
    let _host = MockHost::new().setting("endpoint", URL).setting("region", "us-east-1").install();
    let missing = Readiness::NotReady(r#"the setting "access-key-id" is missing"#.to_owned());
    assert_eq!(EbsDriver::probe(), Ok(missing));
    let _host = host().install();
    assert_eq!(EbsDriver::probe(), Ok(Readiness::Ready));
}
