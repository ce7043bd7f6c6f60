use super::*;

fn config(origin: &str, addresses: &[&str]) -> OriginConfig {
    let addresses = addresses.iter().map(|address| (*address).to_owned()).collect::<Vec<_>>();
    OriginConfig {
        origin: origin.to_owned(),
        addresses: (!addresses.is_empty()).then_some(addresses),
        ..OriginConfig::default()
    }
}

fn policy(origins: &[OriginConfig]) -> Result<OriginPolicy, OriginConfigError> {
    OriginPolicy::new(&HttpConfig { origins: origins.to_vec() })
}

#[test]
fn only_the_configured_origin_matches() {
    let policy = policy(&[config("http://Array.example:8080", &[])]).unwrap();
    for (url, path) in [
        ("http://array.example:8080", "/"),
        ("HTTP://ARRAY.example:8080/a/../b?c=d#e", "/a/../b?c=d"),
        ("http://array.example:8080?q", "/?q"),
        ("http://array.example:8080/http://evil/", "/http://evil/"),
    ] {
        let (target, found) = policy.target(url).unwrap();
        assert_eq!((target.origin.to_string().as_str(), found.as_str()), ("http://array.example:8080", path));
    }
    for (url, origin) in [
        ("https://array.example:8080/", "https://array.example:8080"),
        ("http://array.example/", "http://array.example"),
        ("http://array.example:80/", "http://array.example"),
        ("http://array.example.:8080/", "http://array.example.:8080"),
        ("http://array.example.evil:8080/", "http://array.example.evil:8080"),
        ("http://evil.array.example:8080/", "http://evil.array.example:8080"),
        ("http://2130706433:8080/", "http://2130706433:8080"),
        ("http://0x7f000001:8080/", "http://0x7f000001:8080"),
        ("http://[::ffff:127.0.0.1]:8080/", "http://[::ffff:127.0.0.1]:8080"),
    ] {
        let Err(UrlRejection::Forbidden(found)) = policy.target(url) else { panic!("{url} is allowed") };
        assert_eq!(found.to_string(), origin, "{url}");
    }
    for url in [
        "",
        "/",
        "array.example:8080",
        "ftp://array.example:8080/",
        "http://array.example:8080@evil/",
        "http://user@array.example:8080/",
        "http://array.example:8080\\@evil/",
        "http://array.example:/",
        "http://array.example:+8080/",
        "http://array.example:99999/",
        "http://array.example:0/",
        "http://array%2eexample:8080/",
        "http://[fe80::1%25eth0]:8080/",
        "http://[::1/",
        "http://array.example:8080/ HTTP/1.1",
        "http://array.example:8080/\r\nx: y",
        "http://ärray.example:8080/",
        "http:///path",
    ] {
        assert!(
            matches!(policy.target(url), Err(UrlRejection::Invalid(_))),
            "{url}: {:?}",
            policy.target(url)
        );
    }
}

#[test]
fn special_addresses_are_rejected_unless_listed() {
    let target = |addresses: &[&str]| OriginTarget::new(&config("http://array.example", addresses)).unwrap();
    let admits = |target: &OriginTarget, address: &str| target.is_allowed(address.parse().unwrap());
    let open = target(&[]);
    for address in ["192.0.2.1", "10.0.0.1", "100.64.0.1", "2001:db8::1", "fd00::1", "::ffff:10.0.0.1"] {
        assert!(admits(&open, address), "{address}");
    }
    for address in [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "127.255.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
    ] {
        assert!(!admits(&open, address), "{address}");
        assert!(
            !admits(&target(&["0.0.0.0/0", "::/0"]), address),
            "{address}: not what a wide network means"
        );
        assert!(admits(&target(&[address]), address), "{address} is named");
    }
    let narrow = target(&["10.0.0.0/8", "192.168.1.5", "127.0.0.0/24"]);
    for (address, expected) in [
        ("10.200.0.1", true),
        ("192.168.1.5", true),
        ("127.0.0.1", true),
        ("::ffff:127.0.0.1", true),
        ("127.0.1.1", false),
        ("192.168.1.6", false),
        ("192.0.2.1", false),
        ("2001:db8::1", false),
    ] {
        assert_eq!(admits(&narrow, address), expected, "{address}");
    }
    assert!(admits(&target(&["::ffff:10.0.0.0/104"]), "10.1.2.3"));
}

#[test]
fn invalid_origins_are_rejected_at_load() {
    let insecure = |edit: fn(&mut OriginConfig)| {
        let mut config = config("http://array.example", &[]);
        edit(&mut config);
        config
    };
    for (config, expected) in [
        (config("array.example", &[]), "its scheme is neither https nor http"),
        (config("http://array.example/api", &[]), "has a path; expected scheme, host and port only"),
        (config("http://array.example?x", &[]), "has a path; expected scheme, host and port only"),
        (config("http://*.example", &[]), "its host is not a DNS name"),
        (config("http://127.1", &[]), "its host is neither a DNS name"),
        (config("http://0x7f000001", &[]), "its host is neither a DNS name"),
        (config("http://array.example.", &[]), "its host is neither a DNS name"),
        (
            config("http://127.0.0.1", &[]),
            "127.0.0.1 is not allowed as an address; name it in `addresses`, or by --origin-address",
        ),
        (config("http://[::ffff:127.0.0.1]", &[]), "::ffff:127.0.0.1 is not allowed as an address"),
        (config("http://array.example", &["10.0.0.0/33"]), "\"10.0.0.0/33\" in `addresses`: expected an"),
        (config("http://array.example", &["010.0.0.0/8"]), "\"010.0.0.0/8\" in `addresses`: expected an"),
        (insecure(|config| config.addresses = Some(Vec::new())), "`addresses` is empty"),
        (insecure(|config| config.ca_file = Some("x".into())), "`ca-file` is for https"),
        (insecure(|config| config.pin_sha256 = Some("x".into())), "`pin-sha256` is for https"),
        (insecure(|config| config.certificate_file = Some("x".into())), "`certificate-file` is for https"),
        (insecure(|config| config.key_file = Some("x".into())), "`key-file` is for https"),
    ] {
        let OriginConfigError { origin, error } = policy(std::slice::from_ref(&config)).unwrap_err();
        assert_eq!(origin, config.origin);
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let twice = [config("http://array.example", &[]), config("http://ARRAY.example:80", &[])];
    let OriginConfigError { origin, error } = policy(&twice).unwrap_err();
    assert_eq!(
        (origin.as_str(), error.to_string()),
        ("http://ARRAY.example:80", "is named twice".to_owned())
    );
}

#[test]
fn secrets_need_tls_loopback_or_a_list() {
    let permits = |origins: &[OriginConfig]| {
        let policy = OriginPolicy::new(&HttpConfig { origins: origins.to_vec() }).unwrap();
        let url = origins.first().unwrap().origin.clone();
        ["a", "b"].map(|name| policy.target(&url).unwrap().0.permits_secret(name))
    };
    let pinned = |origin: &str| OriginConfig { pin_sha256: Some("00".repeat(32)), ..config(origin, &[]) };
    let listed = |origin: OriginConfig, names: &[&str]| OriginConfig {
        secrets: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..origin
    };
    #[rustfmt::skip] // one row a case
    let table = [
        (vec![pinned("https://array")],                                   [true, true]),
        (vec![config("http://127.0.0.1:80", &["127.0.0.1"])],             [true, true]),
        (vec![config("http://[::1]", &["::1"])],                          [true, true]),
        (vec![config("http://array", &[])],                               [false, false]),
        (vec![config("http://localhost", &["127.0.0.1"])],                [false, false]),
        (vec![listed(config("http://array", &[]), &["a"])],               [true, false]),
        (vec![listed(pinned("https://array"), &["a"])],                   [true, false]),
        (vec![listed(pinned("https://array"), &[])],                      [false, false]),
        (vec![pinned("https://array"), pinned("https://other")],          [false, false]),
        (vec![listed(pinned("https://array"), &["b"]), pinned("https://other")], [false, true]),
    ];
    for (origins, expected) in table {
        assert_eq!(permits(&origins), expected, "{origins:?}");
    }
}
