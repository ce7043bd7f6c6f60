use super::*;

/// `zone=a,rack=1` as labels or segments.
fn parse_segments(text: &str) -> BTreeMap<String, String> {
    text.split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap())
        .collect()
}

/// `zone=a|b rack=1; zone=c` as `allowedTopologies`.
fn parse_allowed_topologies(text: &str) -> Vec<Vec<(String, Vec<String>)>> {
    let expression = |text: &str| {
        let (key, values) = text.split_once('=').unwrap();
        (key.to_owned(), values.split('|').map(str::to_owned).collect())
    };
    text.split("; ")
        .filter(|term| !term.is_empty())
        .map(|term| term.split(' ').map(expression).collect())
        .collect()
}

fn format_terms(terms: &[Segments]) -> String {
    terms.iter().map(format_segments).collect::<Vec<_>>().join(" ").replace(", ", ",")
}

/// Returns the requirement as `requisite > preferred`, `any` for none, or the error.
///
/// A node is `name keys labels`: keys `-` without CSINode, `0` without the driver, `none` for a driver
/// without keys; labels `-` without Node. `class` is the `allowedTopologies` of the class. The flag `strict`
/// sets `strict`, and `any` unsets `immediate`.
fn describe_requirement(
    nodes: &[&str],
    claim: &str,
    class: &str,
    selected: Option<&str>,
    flags: &str,
) -> String {
    struct Parsed<'a> {
        name: &'a str,
        keys: Option<Option<Vec<String>>>,
        labels: Option<BTreeMap<String, String>>,
    }
    let parsed: Vec<Parsed<'_>> = nodes
        .iter()
        .map(|node| {
            let mut words = node.split(' ');
            let (name, keys, labels) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or(""));
            Parsed {
                name,
                keys: match keys {
                    "-" => None,
                    "0" => Some(None),
                    "none" => Some(Some(Vec::new())),
                    keys => Some(Some(keys.split(',').map(str::to_owned).collect())),
                },
                labels: (labels != "-").then(|| parse_segments(labels)),
            }
        })
        .collect();
    let node_topologies: Vec<NodeTopology<'_>> = parsed
        .iter()
        .map(|node| NodeTopology {
            node: node.name,
            registration: match &node.keys {
                None => DriverRegistration::NoCsiNode,
                Some(None) => DriverRegistration::NotRegistered,
                Some(Some(keys)) => DriverRegistration::Registered(keys),
            },
            labels: node.labels.as_ref(),
        })
        .collect();
    let allowed = parse_allowed_topologies(class);
    let input = TopologyInput {
        claim,
        allowed: &allowed,
        selected,
        strict: flags.contains("strict"),
        immediate: !flags.contains("any"),
    };
    match requirement(input, &node_topologies) {
        Ok(None) => "any".to_owned(),
        Ok(Some(found)) => format!("{} > {}", format_terms(&found.requisite), format_terms(&found.preferred)),
        Err(TopologyError::NotReady(why)) => format!("not ready: {why}"),
        Err(TopologyError::NodeNotFound(why)) => format!("not found: {why}"),
    }
}

const ZONES: [&str; 3] = ["n1 zone zone=a", "n2 zone zone=b", "n3 zone zone=c"];

#[test]
fn the_selected_node_is_the_first_preferred_topology() {
    for (class, selected, flags, expected) in [
        ("", "n2", "strict", "{zone=b} > {zone=b}"),
        ("zone=a|b", "n2", "strict", "{zone=b} > {zone=b}"),
        (
            "zone=a|c",
            "n2",
            "strict",
            "not ready: topology {zone=b} of node n2 is not in allowed topologies: {zone=a}, {zone=c}",
        ),
        ("zone=c|b", "n2", "", "{zone=b} {zone=c} > {zone=b} {zone=c}"),
        ("zone=a|b|c", "n3", "", "{zone=a} {zone=b} {zone=c} > {zone=c} {zone=a} {zone=b}"),
        (
            "zone=a|c",
            "n2",
            "",
            "not ready: topology {zone=b} of node n2 is not in allowed topologies: {zone=a}, {zone=c}",
        ),
        ("", "n2", "", "{zone=a} {zone=b} {zone=c} > {zone=b} {zone=c} {zone=a}"),
        ("", "n1", "", "{zone=a} {zone=b} {zone=c} > {zone=a} {zone=b} {zone=c}"),
        ("", "n9", "", "not found: error getting CSINode for selected node \"n9\": not found"),
    ] {
        assert_eq!(
            describe_requirement(&ZONES, "c", class, Some(selected), flags),
            expected,
            "{class} {selected} {flags}"
        );
    }
}

#[test]
fn a_selected_node_without_csinode_keys_or_labels_is_an_error() {
    for (node, expected) in [
        ("n - zone=a", "not found: error getting CSINode for selected node \"n\": not found"),
        ("n 0 zone=a", "not ready: no topology key found on CSINode n"),
        ("n none zone=a", "not ready: no topology key found on CSINode n"),
        ("n zone -", "not ready: error getting selected node \"n\": not found"),
        ("n zone rack=1", "not ready: topology labels from selected node n are missing: [\"zone\"]"),
        (
            "n zone,rack zone=a",
            "not ready: topology labels from selected node n are missing: [\"zone\", \"rack\"]",
        ),
        ("n zone,rack zone=a,rack=1,other=2", "{rack=1,zone=a} > {rack=1,zone=a}"),
    ] {
        assert_eq!(describe_requirement(&[node], "c", "", Some("n"), ""), expected, "{node}");
    }
    // Only nodes with all keys have segments, whether the driver is registered or not.
    let nodes = ["a zone,rack zone=a,rack=1", "b zone,rack zone=a", "c 0 zone=b,rack=1", "d - zone=a,rack=1"];
    assert_eq!(
        describe_requirement(&nodes, "c", "", Some("a"), ""),
        "{rack=1,zone=a} {rack=1,zone=b} > {rack=1,zone=a} {rack=1,zone=b}"
    );
}

#[test]
fn without_a_selected_node_preferred_topologies_are_spread() {
    // Test vectors of the hash.
    assert_eq!((fnv1(""), fnv1("a"), fnv1("foobar")), (0x811c_9dc5, 0x050c_5d7e, 0x31f0_b262));
    for (claim, class, flags, expected) in [
        ("c", "", "any", "any"),
        ("c", "zone=b", "any", "{zone=b} > {zone=b}"),
        ("c", "zone=c|a; zone=a", "", "{zone=a} {zone=c} > {zone=a} {zone=c}"),
        ("data-web-0", "", "", "{zone=a} {zone=b} {zone=c} > "),
    ] {
        let found = describe_requirement(&ZONES, claim, class, None, flags);
        assert!(found.starts_with(expected), "{claim} {class} {flags}: {found}");
    }
    let first = |claim: &str| {
        let found = describe_requirement(&ZONES, claim, "", None, "");
        found.split_once("> ").unwrap().1.split(' ').next().unwrap().to_owned()
    };
    let replicas: BTreeSet<String> = (0..3).map(|n| first(&format!("data-web-{n}"))).collect();
    assert_eq!(replicas.len(), 3, "replicas spread");
    assert_eq!(first("data-web-1"), first("logs-web-1"), "claims of one pod meet");
    assert_eq!(first("web-1"), first("logs-web-1"), "without a name of its own");
    // Without an ordinal the whole name is hashed.
    assert_eq!(preferred_index("web-", 1_000_003), preferred_index("web-", 1_000_003));
    assert_ne!(preferred_index("web-", 1_000_003), preferred_index("web-0", 1_000_003));
    assert_ne!(preferred_index("web-+1", 1_000_003), preferred_index("web-1", 1_000_003));
}

#[test]
fn without_registered_nodes_there_is_no_requirement() {
    for (nodes, class, expected) in [
        (&[][..], "", "not ready: no available topology found"),
        (&["n - zone=a"], "", "not ready: no available topology found"),
        (&["n 0 zone=a"], "", "not ready: no available topology found"),
        (&["n zone rack=a"], "", "not ready: no available topology found"),
        // The class has the segments.
        (&[], "zone=a", "{zone=a} > {zone=a}"),
    ] {
        assert_eq!(describe_requirement(nodes, "c", class, None, ""), expected, "{nodes:?} {class}");
    }
}

#[test]
fn allowed_topologies_are_cross_products() {
    for (text, expected) in [
        ("", ""),
        ("zone=a", "{zone=a}"),
        ("zone=b|a rack=2|1", "{rack=1,zone=a} {rack=1,zone=b} {rack=2,zone=a} {rack=2,zone=b}"),
        ("zone=a rack=1; zone=b; zone=a rack=1", "{zone=b} {rack=1,zone=a}"),
    ] {
        assert_eq!(format_terms(&flatten(&parse_allowed_topologies(text))), expected, "{text}");
    }
    // A key without values allows no segment.
    assert_eq!(flatten(&[vec![("zone".to_owned(), Vec::new())]]), Vec::<Segments>::new());
}
