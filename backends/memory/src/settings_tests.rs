//! Settings and the messages for invalid ones.

use super::*;

fn parse(pairs: &[(&str, &str)]) -> std::result::Result<MemorySettings, SettingsError> {
    MemorySettings::parse(
        &pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    )
}

#[test]
fn sizes() {
    for (text, bytes) in [("0", 0), ("12", 12), ("3Ki", 3072), ("500Gi", 500 << 30), ("16383Pi", 16383 << 50)]
    {
        assert_eq!(parse(&[("capacity", text)]).unwrap().capacity, CapacitySetting::Total(bytes), "{text}");
    }
    for text in ["", "Gi", "-1", "1e9", "1.5Gi", "99999999999999999999", "16385Pi", "1 Gi", "a=1"] {
        let error = parse(&[("capacity", text)]).unwrap_err().to_string();
        assert!(error.contains(&format!("{text:?}")) && error.contains("500Gi"), "{error}");
    }
}

#[test]
fn an_unknown_setting_is_reported_with_the_known_ones() {
    let error = parse(&[("size", "1")]).unwrap_err().to_string();
    assert!(
        error.starts_with(r#"unknown setting "size"; known are capacity, condition, driver-name, "#),
        "{error}"
    );
    assert!(KEYS.is_sorted());
}

#[test]
fn topology_segments_and_their_capacity_are_parsed() {
    let zones = ("topology", "topology.example/zone=a,b; rack=1,2");
    let settings = parse(&[zones]).unwrap();
    assert_eq!(settings.topology.keys, ["topology.example/zone", "rack"]);
    let labels: Vec<_> = settings.topology.segments.iter().map(|segment| segment.label.as_str()).collect();
    assert_eq!(labels, ["a/1", "a/2", "b/1", "b/2"]);
    let settings = parse(&[zones, ("capacity", "a/1=1Ki, a/2=2, b/1=3, b/2=4")]).unwrap();
    let limits: Vec<_> =
        settings.topology.segments.iter().map(|segment| settings.capacity_limit(Some(segment))).collect();
    assert_eq!(limits, [1024, 2, 3, 4]);
    let error = parse(&[zones, ("capacity", "a/1=1")]).unwrap_err().to_string();
    assert!(error.contains("the segment \"a/2\" is missing"), "{error}");
    for wrong in
        ["", "zone", "zone=", "zone=a,a", "zone=a;zone=b", "/zone=a", "UPPER/zone=a", "zone=a b", "-z=a"]
    {
        let error = parse(&[("topology", wrong)]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{wrong:?}")) && error.contains("topology.example/zone=a,b"),
            "{error}"
        );
    }
    let many: Vec<_> = (0..65).map(|number| number.to_string()).collect();
    assert!(
        parse(&[("topology", &format!("z={}", many.join(",")))])
            .unwrap_err()
            .to_string()
            .contains("at most 64 segments")
    );
}

#[test]
fn invalid_settings_are_reported_with_value_and_expectation() {
    for (key, value, expected) in [
        ("features", "publish-readonly,flying", "expected a list of publish-readonly, published-nodes"),
        ("volumes-per-node", "0", "expected a number from 1 to 4294967295"),
        ("max-snapshots", "-1", "expected a number from 0 to 18446744073709551615"),
        ("snapshot-ready-after", "1001", "expected a number from 0 to 1000"),
        ("condition", "broken", "expected normal:message or abnormal:message"),
        ("nodes", "a,,b", "expected a list of names"),
        ("latency-ms", "fly=1", "such as 5,create=50"),
        ("latency-ms", "600001", "such as 5,create=50"),
        ("latency-ms", "1,2", "such as 5,create=50"),
        ("errors", "create", "such as create:unavailable:3"),
        ("errors", "fly:unavailable:1", "expected one of create, delete,"),
        ("errors", "create:sad:1", "expected one of invalid-argument,"),
        ("errors", "create:unavailable:0", "expected a number from 1 to 1000000"),
        ("errors", "create:unavailable:1:final:after", "such as create:unavailable:3"),
        ("errors", "create:unavailable:1:after:final", "no final failure of a call that has taken effect"),
        ("errors", "create:unavailable:1,create:unavailable:1", "only once"),
    ] {
        let error = parse(&[(key, value)]).unwrap_err().to_string();
        let begin = format!("the setting {key:?} is {value:?}; expected");
        assert!(error.starts_with(&begin) && error.contains(expected), "{error}");
    }
}

#[test]
fn features_are_switched_off_by_leaving_them_out() {
    let names = |text| parse(&[("features", text)]).unwrap().features.names();
    assert_eq!(names(""), [""; 0]);
    assert_eq!(names(" published-nodes , publish-readonly"), ["publish-readonly", "published-nodes"]);
    assert_eq!(Features::default().names().len(), 5);
}
