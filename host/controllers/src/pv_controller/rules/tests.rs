//! Upstream's table-driven cases of binding in a short notation, and cases of the deviations.
//!
//! A volume is `name size ref phase …`, a claim `size volume phase …`. The ref is `-` for none, `me` for name
//! and UID of the claim, `me/0` for the name only, `me/x` for another UID, `oth` for another claim. The
//! phases are A(vailable), B(ound), R(eleased), F(ailed), P(ending) and L(ost). Further words: `bc`
//! bound-by-controller, `bd` bind-completed, `dp=x` provisioned-by, `sp=x` storage-provisioner, `sn=x`
//! selected-node, `mt=x` migrated-to, `pre=x` pre-resize-capacity, `beta=x` legacy class annotation, `sc=x`
//! class, `vac=x` VolumeAttributesClass, `K` Block, `del`/`rec`/`odd` reclaim policy (default Retain), `csi`
//! CSI source, `l=k:v` label, `sel=k:v` selector, `badsel` invalid selector, `m=…` access modes, `deleting`,
//! `cap=x` status.capacity, `fin=…` finalizers (IT of the in-tree plugin, EXT of external-provisioner),
//! `src=x` in-tree source. A class is `name provisioner …` with the words `wffc` WaitForFirstConsumer,
//! `unset` no volumeBindingMode, `default` default class, or a number: the creation time in milliseconds.
#![allow(clippy::type_complexity, reason = "the type of a table's rows is written once, at the table")]

use std::{collections::BTreeMap, sync::Arc};

use cofferdam_cluster::{Cache, EventType};
use cofferdam_domain::{
    AccessMode, AccessModes, BindingMode, Claim, ClaimKey, ClaimPhase, ClaimRef, DriverName, LabelSelector,
    LabelSelectorRequirement, ObjectMeta, Quantity, ReclaimPolicy, StorageClass, StringMap, Uid, Volume,
    VolumeMode, VolumePhase, names,
    selector::InvalidRequirement,
    volume::{CsiVolumeSource, VolumeNotation},
};

use super::{
    AttributesClassWrite, BindingInput, CapacityWrite, ClaimBindingVerdict, ClaimEffect, MigratedToWrite,
    VolumeBindingVerdict, VolumeEffect, decide_claim, decide_volume,
};
use crate::events::EventSpec;

const CLAIM_UID: &str = "uid-me";

fn key() -> ClaimKey {
    ClaimKey::new("default", "me")
}

fn modes(text: &str) -> AccessModes {
    text.split('+')
        .map(|mode| match mode {
            "RWO" => AccessMode::ReadWriteOnce,
            "ROX" => AccessMode::ReadOnlyMany,
            "RWX" => AccessMode::ReadWriteMany,
            "RWOP" => AccessMode::ReadWriteOncePod,
            other => panic!("mode {other}"),
        })
        .collect()
}

fn annotate(meta: &mut ObjectMeta, key: &str, value: &str) {
    meta.annotations = with(&meta.annotations, key, value);
}

fn with(map: &StringMap, key: &str, value: &str) -> StringMap {
    map_of(map.iter().chain([(key, value)]))
}

fn without(map: &StringMap, key: &str) -> StringMap {
    map_of(map.iter().filter(|(other, _)| *other != key))
}

fn map_of<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> StringMap {
    entries.map(|(key, value)| (key.into(), value.into())).collect::<BTreeMap<Box<str>, Box<str>>>().into()
}

fn pair(text: &str) -> (Box<str>, Box<str>) {
    let (key, value) = text.split_once(':').unwrap();
    (key.into(), value.into())
}

fn pv(spec: &str) -> Volume {
    let mut words = spec.split_whitespace();
    let mut next = || words.next().unwrap();
    let (name, size, reference, phase) = (next(), next(), next(), next());
    let claim_ref = |name: &str, uid: Option<&str>| {
        Some(ClaimRef { key: ClaimKey::new("default", name), uid: uid.map(Uid::from) })
    };
    let mut volume = Volume {
        name: name.into(),
        meta: ObjectMeta {
            resource_version: 1.into_version(),
            uid: format!("uid-{name}").into(),
            ..ObjectMeta::default()
        },
        capacity: Some(Quantity::parse(size).unwrap()),
        access_modes: modes("RWO+ROX"),
        mode: VolumeMode::Filesystem,
        class: "".into(),
        attributes_class: "".into(),
        reclaim_policy: ReclaimPolicy::Retain,
        claim_ref: match reference {
            "-" => None,
            "me" => claim_ref("me", Some(CLAIM_UID)),
            "me/0" => claim_ref("me", None),
            "me/x" => claim_ref("me", Some("uid-x")),
            "oth" => claim_ref("other", Some("uid-other")),
            other => panic!("ref {other}"),
        },
        mount_options: Vec::new(),
        node_affinity_terms: Box::default(),
        csi: None,
        in_tree_source: None,
        notation: None,
        phase: match phase {
            "A" => VolumePhase::Available,
            "B" => VolumePhase::Bound,
            "R" => VolumePhase::Released,
            "F" => VolumePhase::Failed,
            "P" => VolumePhase::Pending,
            other => panic!("phase {other}"),
        },
    };
    for word in words {
        let meta = &mut volume.meta;
        match word.split_once('=').unwrap_or((word, "")) {
            ("bc", _) => annotate(meta, names::BOUND_BY_CONTROLLER, "yes"),
            ("dp", by) => annotate(meta, names::PROVISIONED_BY, by),
            ("mt", to) => annotate(meta, names::MIGRATED_TO, to),
            ("pre", size) => annotate(meta, names::PRE_RESIZE_CAPACITY, size),
            ("sc", class) => volume.class = class.into(),
            ("vac", class) => volume.attributes_class = class.into(),
            ("K", _) => volume.mode = VolumeMode::Block,
            ("del", _) => volume.reclaim_policy = ReclaimPolicy::Delete,
            ("rec", _) => volume.reclaim_policy = ReclaimPolicy::Recycle,
            ("odd", _) => volume.reclaim_policy = ReclaimPolicy::Other("Unknown".to_owned()),
            ("csi", _) => {
                volume.csi = Some(CsiVolumeSource {
                    driver: "drv".into(),
                    handle: "h".into(),
                    attributes: Default::default(),
                    fs_type: None,
                    read_only: false,
                    publish_secret: None,
                    expand_secret: None,
                });
            }
            ("l", label) => meta.labels = with(&meta.labels, &pair(label).0, &pair(label).1),
            ("m", list) => volume.access_modes = modes(list),
            ("deleting", _) => meta.deleting = true,
            ("fin", list) => meta.finalizers = list.split('+').map(|name| finalizer(name).into()).collect(),
            ("src", "nfs") => volume.in_tree_source = Some("nfs"),
            ("src", "rbd") => volume.in_tree_source = Some("rbd"),
            other => panic!("word {other:?}"),
        }
    }
    volume
}

fn finalizer(name: &str) -> &str {
    match name {
        "IT" => names::IN_TREE_FINALIZER,
        "EXT" => names::PROVISIONER_FINALIZER,
        other => other,
    }
}

fn pvc(spec: &str) -> Claim {
    let mut words = spec.split_whitespace();
    let mut next = || words.next().unwrap();
    let (size, volume, phase) = (next(), next(), next());
    let size = Quantity::parse(size).unwrap();
    let mut claim = Claim {
        key: key(),
        meta: ObjectMeta {
            resource_version: 1.into_version(),
            uid: CLAIM_UID.into(),
            ..ObjectMeta::default()
        },
        controller_uid: None,
        volume: (volume != "-").then(|| volume.into()),
        class: None,
        access_modes: modes("RWO+ROX"),
        mode: VolumeMode::Filesystem,
        request: Ok(size),
        selector: None,
        attributes_class: "".into(),
        source: None,
        phase: ClaimPhase::Pending,
        status_access_modes: AccessModes::default(),
        status_access_mode_list: None,
        status_capacity: None,
        status_attributes_class: None,
        progress: None,
    };
    match phase {
        "P" => {}
        "L" => claim.phase = ClaimPhase::Lost,
        "B" => {
            claim.phase = ClaimPhase::Bound;
            claim.status_access_modes = claim.access_modes;
            claim.status_capacity = Some(size);
        }
        other => panic!("phase {other}"),
    }
    for word in words {
        let meta = &mut claim.meta;
        match word.split_once('=').unwrap_or((word, "")) {
            ("bc", _) => annotate(meta, names::BOUND_BY_CONTROLLER, "yes"),
            ("bd", _) => annotate(meta, names::BIND_COMPLETED, "yes"),
            ("sp", by) => annotate(meta, names::STORAGE_PROVISIONER, by),
            ("mt", to) => annotate(meta, names::MIGRATED_TO, to),
            ("sn", node) => annotate(meta, names::SELECTED_NODE, node),
            ("beta", class) => annotate(meta, names::CLASS_BETA, class),
            ("sc", class) => claim.class = Some(class.into()),
            ("vac", class) => claim.attributes_class = class.into(),
            ("K", _) => claim.mode = VolumeMode::Block,
            ("m", list) => claim.access_modes = modes(list),
            ("sel", label) => {
                let (key, value) = pair(label);
                let requirements = vec![LabelSelectorRequirement::In(key, vec![value])];
                claim.selector = Some(Box::new(Ok(LabelSelector { requirements })));
            }
            ("badsel", _) => {
                claim.selector = Some(Box::new(Err(InvalidRequirement {
                    key: "k".into(),
                    operator: "Near".into(),
                    values: 0,
                })))
            }
            ("deleting", _) => meta.deleting = true,
            ("cap", size) => claim.status_capacity = Some(Quantity::parse(size).unwrap()),
            other => panic!("word {other:?}"),
        }
    }
    claim
}

trait IntoVersion {
    fn into_version(self) -> cofferdam_domain::ResourceVersion;
}

impl IntoVersion for u64 {
    fn into_version(self) -> cofferdam_domain::ResourceVersion {
        cofferdam_domain::ResourceVersion(self)
    }
}

fn class(spec: &str) -> StorageClass {
    let mut words = spec.split_whitespace();
    let (name, provisioner) = (words.next().unwrap(), words.next().unwrap());
    let mut class = StorageClass {
        name: name.into(),
        meta: ObjectMeta {
            resource_version: 1.into_version(),
            uid: format!("uid-{name}").into(),
            ..ObjectMeta::default()
        },
        provisioner: provisioner.into(),
        parameters: Default::default(),
        reclaim_policy: ReclaimPolicy::Delete,
        mount_options: Vec::new(),
        binding_mode: Some(BindingMode::Immediate),
        allowed_topologies: Vec::new(),
    };
    for word in words {
        match word {
            "wffc" => class.binding_mode = Some(BindingMode::WaitForFirstConsumer),
            "unset" => class.binding_mode = None,
            "default" => annotate(&mut class.meta, names::DEFAULT_CLASS, "true"),
            newer => class.meta.created_ms = newer.parse().unwrap(),
        }
    }
    class
}

/// The fields of a volume that binding changes, in the notation of this module.
fn show_volume(volume: &Volume) -> String {
    let reference = match &volume.claim_ref {
        None => "-",
        Some(r) if *r.key.name == *"other" => "oth",
        Some(r) => match &r.uid {
            None => "me/0",
            Some(uid) if *uid == CLAIM_UID.into() => "me",
            Some(_) => "me/x",
        },
    };
    let phase = match volume.phase {
        VolumePhase::Available => "A",
        VolumePhase::Bound => "B",
        VolumePhase::Released => "R",
        VolumePhase::Failed => "F",
        VolumePhase::Pending => "P",
    };
    let bc = if volume.meta.has_annotation(names::BOUND_BY_CONTROLLER) { " bc" } else { "" };
    let mut text = format!("{} {reference} {phase}{bc}", volume.name);
    if let Some(to) = volume.meta.annotation(names::MIGRATED_TO) {
        text.push_str(&format!(" mt={to}"));
    }
    if !volume.meta.finalizers.is_empty() {
        let short = |finalizer: &Arc<str>| match &**finalizer {
            names::IN_TREE_FINALIZER => "IT".to_owned(),
            names::PROVISIONER_FINALIZER => "EXT".to_owned(),
            other => other.to_owned(),
        };
        let finalizers: Vec<String> = volume.meta.finalizers.iter().map(short).collect();
        text.push_str(&format!(" fin={}", finalizers.join("+")));
    }
    text
}

/// The fields of a claim that binding changes, in the notation of this module.
fn show_claim(claim: &Claim) -> String {
    let phase = match claim.phase {
        ClaimPhase::Pending => "P",
        ClaimPhase::Bound => "B",
        ClaimPhase::Lost => "L",
    };
    let mut text = format!("{} {phase}", claim.volume.as_ref().map_or("-", |volume| volume.as_str()));
    for (key, short) in [(names::BOUND_BY_CONTROLLER, " bc"), (names::BIND_COMPLETED, " bd")] {
        if claim.meta.has_annotation(key) {
            text.push_str(short);
        }
    }
    if let Some(by) = claim.meta.annotation(names::STORAGE_PROVISIONER) {
        text.push_str(&format!(" sp={by}"));
    }
    if let Some(to) = claim.meta.annotation(names::MIGRATED_TO) {
        text.push_str(&format!(" mt={to}"));
    }
    if let Some(class) = &claim.class {
        text.push_str(&format!(" sc={class}"));
    }
    if let Some(capacity) = claim.status_capacity {
        text.push_str(&format!(" cap={capacity}"));
    }
    if let Some(class) = &claim.status_attributes_class {
        text.push_str(&format!(" vac={class}"));
    }
    text
}

fn write_migrated_to(meta: &mut ObjectMeta, write: &MigratedToWrite) {
    match write {
        MigratedToWrite::Keep => {}
        MigratedToWrite::Clear => meta.annotations = without(&meta.annotations, names::MIGRATED_TO),
        MigratedToWrite::Set(driver) => annotate(meta, names::MIGRATED_TO, driver.as_str()),
    }
}

/// An API that performs the effects of verdicts.
#[derive(Default)]
struct FakeApi {
    cache: Cache,
    version: u64,
    events: Vec<String>,
}

impl FakeApi {
    /// Input with this [`BindingInput::has_provisioner`] and no locked volumes.
    fn input<'a>(&'a self, has_provisioner: &'a dyn Fn(&DriverName) -> bool) -> BindingInput<'a> {
        BindingInput { cache: &self.cache, has_provisioner, is_locked_by_other: &|_| false }
    }

    fn new(classes: &[&str], volumes: &[&str], claims: &[&str]) -> Self {
        let api = Self { version: 1, ..Self::default() };
        classes.iter().for_each(|spec| assert!(api.cache.classes.apply(Ok(class(spec)))));
        volumes.iter().for_each(|spec| assert!(api.cache.volumes.apply(Ok(pv(spec)))));
        claims.iter().for_each(|spec| assert!(api.cache.claims.apply(Ok(pvc(spec)))));
        api
    }

    fn put_volume(&mut self, volume: &Volume, change: impl FnOnce(&mut Volume)) {
        let mut volume = volume.clone();
        change(&mut volume);
        self.version += 1;
        volume.meta.resource_version = self.version.into_version();
        assert!(self.cache.volumes.apply(Ok(volume)));
    }

    fn put_claim(&mut self, claim: &Claim, change: impl FnOnce(&mut Claim)) {
        let mut claim = claim.clone();
        change(&mut claim);
        self.version += 1;
        claim.meta.resource_version = self.version.into_version();
        assert!(self.cache.claims.apply(Ok(claim)));
    }

    fn record_event(&mut self, event: EventSpec) {
        let kind = if event.kind == EventType::Normal { "N" } else { "W" };
        self.events.push(format!("{kind} {}", event.reason));
    }

    /// Performs the verdicts for the claim until one has no effect. Returns a short name of the last verdict.
    /// The drivers in `local_provisioners` have their provisioner in this process.
    fn reconcile_claim(&mut self, local_provisioners: &[&str]) -> String {
        let has_provisioner = |driver: &DriverName| local_provisioners.contains(&driver.as_str());
        for _ in 0..20 {
            let Some(current) = self.cache.claims.get(&key()).into_object() else {
                return "absent".to_owned();
            };
            let verdict = decide_claim(self.input(&has_provisioner), &current);
            match verdict {
                ClaimBindingVerdict::Apply(effect, event) => {
                    self.perform(&current, effect);
                    event.into_iter().for_each(|event| self.record_event(event));
                }
                ClaimBindingVerdict::ApplyBoth(effects) => {
                    effects.into_iter().for_each(|effect| self.perform(&current, effect));
                }
                ClaimBindingVerdict::NoAction(_) => return "no action".to_owned(),
                ClaimBindingVerdict::Wait(event) => {
                    self.record_event(event);
                    return "wait".to_owned();
                }
                ClaimBindingVerdict::WaitForProvisioner(class, driver) => {
                    return format!("provisioner {class} {driver}");
                }
                ClaimBindingVerdict::Fail(_, event) => {
                    event.into_iter().for_each(|event| self.record_event(event));
                    return "fail".to_owned();
                }
            }
        }
        panic!("the claim does not converge");
    }

    fn perform(&mut self, claim: &Claim, effect: ClaimEffect) {
        match effect {
            ClaimEffect::AssignClass(name) => {
                self.put_claim(claim, |claim| claim.class = Some(name.as_str().into()));
            }
            ClaimEffect::ReserveVolume { volume, by_controller } => self.put_volume(&volume, |volume| {
                volume.claim_ref = Some(ClaimRef { key: key(), uid: Some(CLAIM_UID.into()) });
                if by_controller {
                    annotate(&mut volume.meta, names::BOUND_BY_CONTROLLER, "yes");
                }
            }),
            ClaimEffect::MarkVolumeBound(volume) => {
                self.put_volume(&volume, |volume| volume.phase = VolumePhase::Bound);
            }
            ClaimEffect::BindClaim { volume, by_controller, provisioner } => self.put_claim(claim, |claim| {
                claim.volume = Some(volume);
                annotate(&mut claim.meta, names::BIND_COMPLETED, "yes");
                if by_controller {
                    annotate(&mut claim.meta, names::BOUND_BY_CONTROLLER, "yes");
                }
                if let Some(driver) = provisioner {
                    annotate(&mut claim.meta, names::STORAGE_PROVISIONER, driver.as_str());
                }
            }),
            ClaimEffect::SetStatus(status) => self.put_claim(claim, |claim| {
                claim.phase = status.phase;
                claim.status_access_modes = status.access_modes.unwrap_or_default().into_iter().collect();
                match status.capacity {
                    CapacityWrite::Keep => {}
                    CapacityWrite::Clear => claim.status_capacity = None,
                    CapacityWrite::Set(capacity) => {
                        claim.status_capacity = Some(Quantity::parse(&capacity).unwrap());
                    }
                }
                match status.attributes_class {
                    AttributesClassWrite::Keep => {}
                    AttributesClassWrite::Clear => claim.status_attributes_class = None,
                    AttributesClassWrite::Set(class) => claim.status_attributes_class = Some(class),
                }
            }),
            ClaimEffect::SetProvisioner(driver) => self.put_claim(claim, |claim| {
                annotate(&mut claim.meta, names::STORAGE_PROVISIONER, driver.as_str());
            }),
            ClaimEffect::SetMigratedTo(to) => {
                self.put_claim(claim, |claim| write_migrated_to(&mut claim.meta, &to))
            }
        }
    }

    /// Performs the verdicts for a volume until one has no effect. Returns a short name of the last verdict.
    /// `live` is the claim that a live read returns, or `None` if the claim is as in the cache.
    fn reconcile_volume(&mut self, name: &str, live: Option<&str>) -> String {
        let mut refreshed_claim = None;
        for _ in 0..20 {
            let Some(current) = self.cache.volumes.get(&name.into()).into_object() else {
                return "absent".to_owned();
            };
            match decide_volume(self.input(&|_| false), &current, refreshed_claim.as_ref()) {
                VolumeBindingVerdict::Apply(VolumeEffect::RefreshBeforeRelease(key), _) => {
                    refreshed_claim = current.claim_ref.clone();
                    if let Some(live) = live {
                        self.version += 1;
                        let version = self.version.into_version();
                        let mut claim = pvc(live);
                        claim.meta.resource_version = version;
                        if let Some(old) = self.cache.claims.get(&key).into_object() {
                            self.cache.claims.delete(&key, &old.meta.uid, old.meta.resource_version);
                        }
                        self.cache.claims.apply(Ok(claim));
                    }
                }
                VolumeBindingVerdict::Apply(VolumeEffect::SetPhase(phase, _), event) => {
                    self.put_volume(&current, |volume| volume.phase = phase);
                    event.into_iter().for_each(|event| self.record_event(event));
                }
                VolumeBindingVerdict::Apply(VolumeEffect::Unbind { whole }, _) => {
                    self.put_volume(&current, |volume| {
                        if whole {
                            volume.claim_ref = None;
                            volume.meta.annotations =
                                without(&volume.meta.annotations, names::BOUND_BY_CONTROLLER);
                        } else if let Some(reference) = &mut volume.claim_ref {
                            reference.uid = None;
                        }
                    })
                }
                VolumeBindingVerdict::Apply(VolumeEffect::UpdateMigration { migrated_to, finalizers }, _) => {
                    self.put_volume(&current, |volume| {
                        write_migrated_to(&mut volume.meta, &migrated_to);
                        if let Some(finalizers) = finalizers {
                            volume.meta.finalizers = finalizers.into();
                        }
                    })
                }
                VolumeBindingVerdict::EnqueueClaim(_) => return "enqueue claim".to_owned(),
                VolumeBindingVerdict::VolumeModeMismatch(_, on_volume, on_claim) => {
                    self.record_event(on_volume);
                    self.record_event(on_claim);
                    return "mismatch".to_owned();
                }
                VolumeBindingVerdict::NoAction(_) => return "no action".to_owned(),
            }
        }
        panic!("the volume does not converge");
    }

    fn show(&self) -> (Vec<String>, String) {
        let mut volumes: Vec<String> = self.cache.volumes.list().iter().map(|v| show_volume(v)).collect();
        volumes.sort();
        let claim = self.cache.claims.get(&key()).into_object();
        (volumes, claim.map_or_else(|| "absent".to_owned(), |claim| show_claim(&claim)))
    }
}

/// Name, volumes, claim, last verdict, volumes and claim afterwards, events.
type ClaimCase = (
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static [&'static str],
);

#[track_caller]
fn check_claims(classes: &[&str], local_provisioners: &[&str], cases: &[ClaimCase]) {
    for (id, volumes, claim, end, volumes_after, claim_after, events) in cases {
        let mut api = FakeApi::new(classes, volumes, &[claim]);
        assert_eq!(api.reconcile_claim(local_provisioners), *end, "{id}");
        let (volumes, claim) = api.show();
        assert_eq!(volumes, *volumes_after, "{id}");
        assert_eq!(claim, *claim_after, "{id}");
        assert_eq!(api.events, *events, "{id}");
    }
}

#[test]
#[rustfmt::skip] // a table
fn claims_without_a_volume() {
    check_claims(
        &["wait drv wffc"],
        &[],
        &[
            ("1-1", &["v 1Gi - A"], "1Gi - P", "no action", &["v me B bc"], "v B bc bd cap=1Gi", &[]),
            ("1-2", &["v 1Gi - A"], "10Gi - P", "wait", &["v - A"], "- P", &["N FailedBinding"]),
            ("1-3", &["v 1Gi - A"], "10Gi - B", "wait", &["v - A"], "- P", &["N FailedBinding"]),
            ("1-4", &["a 10Gi - A", "b 1Gi - A"], "1Gi - P", "no action", &["a - A", "b me B bc"],
                "b B bc bd cap=1Gi", &[]),
            ("1-5", &["a 10Gi me/0 A", "b 1Gi - A"], "1Gi - P", "no action", &["a me B", "b - A"],
                "a B bc bd cap=10Gi", &[]),
            ("1-6", &["a 10Gi me A", "b 1Gi - A"], "1Gi - P", "no action", &["a me B", "b - A"],
                "a B bc bd cap=10Gi", &[]),
            ("1-7", &["v 10Gi me/x A"], "1Gi - P", "wait", &["v me/x A"], "- P", &["N FailedBinding"]),
            ("1-8 crash after write 1", &["v 1Gi me A bc"], "1Gi - P", "no action", &["v me B bc"],
                "v B bc bd cap=1Gi", &[]),
            ("1-9 crash after write 2", &["v 1Gi me B bc"], "1Gi - P", "no action", &["v me B bc"],
                "v B bc bd cap=1Gi", &[]),
            ("1-10 crash after write 3", &["v 1Gi me B bc"], "1Gi v P bc bd", "no action", &["v me B bc"],
                "v B bc bd cap=1Gi", &[]),
            ("1-11", &["v 1Gi - A l=foo:true"], "1Gi - P sel=foo:true", "no action", &["v me B bc"],
                "v B bc bd cap=1Gi", &[]),
            ("1-12", &["v 1Gi - A"], "1Gi - P sel=foo:true", "wait", &["v - A"], "- P", &["N FailedBinding"]),
            ("1-13", &["v 1Gi - A sc=wait"], "1Gi - P sc=wait", "wait", &["v - A"], "- P sc=wait",
                &["N WaitForFirstConsumer"]),
            ("1-14", &["v 1Gi me/0 A sc=wait"], "1Gi - P sc=wait", "no action", &["v me B"],
                "v B bc bd sc=wait cap=1Gi", &[]),
            ("1-15", &["a 10Gi - A", "b 1Gi - A"], "1Gi a P", "no action", &["a me B bc", "b - A"],
                "a B bd cap=10Gi", &[]),
            ("1-16", &["v 1Gi - A"], "1Gi v P m=RWX", "wait", &["v - A"], "v P", &["W VolumeMismatch"]),
            ("1-17", &["a 1Gi - P", "b 1Gi - F", "c 1Gi - R"], "1Gi - P", "wait",
                &["a - P", "b - F", "c - R"], "- P", &["N FailedBinding"]),
            ("1-18", &["v 1Gi me A sc=wait"], "1Gi - P sc=wait sn=node1", "no action", &["v me B"],
                "v B bc bd sc=wait cap=1Gi", &[]),
            ("invalid selector", &["v 1Gi - A"], "1Gi - P badsel", "fail", &["v - A"], "- P",
                &["W FailedBinding"]),
            ("a claim being deleted is not bound", &["v 1Gi - A"], "1Gi - P deleting", "no action",
                &["v - A"], "- P", &[]),
            ("a volume being deleted is not bound", &["v 1Gi - A deleting"], "1Gi - P", "wait", &["v - A"],
                "- P", &["N FailedBinding"]),
        ],
    );
}

#[test]
#[rustfmt::skip] // a table
fn claims_with_a_volume_name() {
    check_claims(
        &[],
        &[],
        &[
            ("2-1", &[], "10Gi v P", "no action", &[], "v P", &[]),
            ("2-2", &[], "10Gi v B", "no action", &[], "v P", &[]),
            ("2-3", &["v 1Gi - A"], "1Gi v P", "no action", &["v me B bc"], "v B bd cap=1Gi", &[]),
            ("2-4", &["v 1Gi me/0 A"], "1Gi v P", "no action", &["v me B"], "v B bd cap=1Gi", &[]),
            ("2-5", &["v 1Gi me A"], "1Gi v P", "no action", &["v me B"], "v B bd cap=1Gi", &[]),
            ("2-6", &["v 1Gi oth B"], "1Gi v B", "wait", &["v oth B"], "v P", &["W FailedBinding"]),
            ("2-7", &["v 1Gi oth B"], "1Gi v B bc", "fail", &["v oth B"], "v B bc cap=1Gi",
                &["W FailedBinding"]),
            ("2-8", &["v 1Gi - A"], "1Gi v P sel=foo:true", "no action", &["v me B bc"], "v B bd cap=1Gi",
                &[]),
            ("2-9", &["v 1Gi - A"], "2Gi v B", "wait", &["v - A"], "v P", &["W VolumeMismatch"]),
            ("2-10", &["v 1Gi - A sc=gold"], "1Gi v B", "wait", &["v - A"], "v P", &["W VolumeMismatch"]),
            ("2-11", &["v 1Gi - A vac=gold"], "1Gi v B", "wait", &["v - A"], "v P", &["W VolumeMismatch"]),
            ("2-12", &["v 1Gi - A vac=gold"], "1Gi v P vac=gold", "no action", &["v me B bc"],
                "v B bd cap=1Gi vac=gold", &[]),
            ("a claim being deleted is not bound", &["v 1Gi - A"], "1Gi v P deleting", "no action",
                &["v - A"], "v P", &[]),
            ("a volume being deleted is not bound", &["v 1Gi - A deleting"], "1Gi v P", "wait", &["v - A"],
                "v P", &["W VolumeMismatch"]),
        ],
    );
}

#[test]
#[rustfmt::skip] // a table
fn claims_with_bind_completed() {
    check_claims(
        &[],
        &[],
        &[
            ("3-1", &[], "10Gi - B bc bd", "no action", &[], "- L bc bd", &["W ClaimLost"]),
            ("3-2", &[], "10Gi v B bc bd", "no action", &[], "v L bc bd", &["W ClaimLost"]),
            ("3-3", &["v 10Gi - A"], "10Gi v P bc bd", "no action", &["v me B bc"], "v B bc bd cap=10Gi",
                &[]),
            ("3-4", &["v 10Gi me/x A"], "10Gi v P bc bd", "no action", &["v me/x A"], "v L bc bd",
                &["W ClaimMisbound"]),
            ("3-5", &["v 10Gi me A"], "10Gi v P bd", "no action", &["v me B"], "v B bd cap=10Gi", &[]),
            ("3-6", &["v 10Gi oth A"], "10Gi v P bd", "no action", &["v oth A"], "v L bd",
                &["W ClaimMisbound"]),
            ("3-7", &["v 10Gi - A"], "10Gi v P bc bd sel=foo:true", "no action", &["v me B bc"],
                "v B bc bd cap=10Gi", &[]),
            ("a lost claim gets one event", &[], "10Gi v L bc bd", "no action", &[], "v L bc bd", &[]),
            ("the volume of a lost claim exists again", &["v 10Gi me B"], "10Gi v L bc bd", "no action",
                &["v me B"], "v B bc bd cap=10Gi", &[]),
            ("reserved by name after a restore", &["v 10Gi me/0 A"], "10Gi v B bc bd", "no action",
                &["v me/0 A"], "v L bc bd", &["W ClaimMisbound"]),
            ("the resizer writes a larger capacity", &["v 20Gi me B"], "10Gi v B bc bd", "no action",
                &["v me B"], "v B bc bd cap=10Gi", &[]),
        ],
    );
}

#[test]
#[rustfmt::skip] // a table
fn the_migration_of_an_in_tree_plugin_is_recorded_on_its_claims() {
    check_claims(
        &[],
        &[],
        &[
            ("migrated", &["v 1Gi me B"], "1Gi v B bc bd sp=kubernetes.io/gce-pd", "no action", &["v me B"],
                "v B bc bd sp=kubernetes.io/gce-pd mt=pd.csi.storage.gke.io cap=1Gi", &[]),
            ("not migrated", &["v 1Gi me B"], "1Gi v B bc bd sp=kubernetes.io/rbd", "no action", &["v me B"],
                "v B bc bd sp=kubernetes.io/rbd cap=1Gi", &[]),
            ("not migrated any more", &["v 1Gi me B"],
                "1Gi v B bc bd sp=kubernetes.io/rbd mt=rbd.csi.ceph.com", "no action", &["v me B"],
                "v B bc bd sp=kubernetes.io/rbd cap=1Gi", &[]),
            ("no provisioner", &["v 1Gi me B"], "1Gi v B bc bd mt=x", "no action", &["v me B"],
                "v B bc bd mt=x cap=1Gi", &[]),
        ],
    );
}

#[test]
fn the_status_of_a_bound_claim_has_the_notation_of_its_volume() {
    use AccessMode::{ReadOnlyMany, ReadWriteOnce};
    let bound_status = |capacity: Option<&str>, modes: Option<Vec<AccessMode>>, words: &str| {
        let mut volume = pv(&format!("v 2G me B {words}"));
        volume.notation = Some(Box::new(VolumeNotation {
            capacity: capacity.map(Into::into),
            access_modes: modes.map(Into::into),
        }));
        let api = FakeApi::default();
        assert!(api.cache.volumes.apply(Ok(volume)));
        let verdict = decide_claim(api.input(&|_| false), &pvc("1G v P bd"));
        let ClaimBindingVerdict::Apply(ClaimEffect::SetStatus(status), None) = verdict else {
            panic!("{verdict:?}")
        };
        (status.capacity, status.access_modes.unwrap())
    };
    let twice = vec![ReadWriteOnce, ReadWriteOnce];
    assert_eq!(
        bound_status(Some("2G"), Some(twice.clone()), "m=RWO"),
        (CapacityWrite::Set("2G".to_owned()), twice)
    );
    assert_eq!(
        bound_status(None, Some(vec![ReadOnlyMany, ReadWriteOnce]), ""),
        (CapacityWrite::Set("1953125Ki".to_owned()), vec![ReadOnlyMany, ReadWriteOnce])
    );
    assert_eq!(bound_status(Some("2G"), None, "pre=1G").0, CapacityWrite::Set("1G".to_owned()));
}

#[test]
fn a_bound_claim_gets_the_list_of_access_modes_of_its_volume() {
    use AccessMode::{ReadOnlyMany, ReadWriteOnce};
    let mut volume = pv("v 1Gi me B");
    let list = vec![ReadOnlyMany, ReadWriteOnce];
    volume.notation =
        Some(Box::new(VolumeNotation { capacity: None, access_modes: Some(list.clone().into()) }));
    let api = FakeApi::default();
    assert!(api.cache.volumes.apply(Ok(volume)));
    let mut claim = pvc("1Gi v B bd");
    let verdict = decide_claim(api.input(&|_| false), &claim);
    let ClaimBindingVerdict::Apply(ClaimEffect::SetStatus(status), None) = verdict else {
        panic!("{verdict:?}")
    };
    assert_eq!((status.access_modes, status.capacity), (Some(list.clone()), CapacityWrite::Keep));
    claim.status_access_mode_list = Some(list.into());
    assert!(matches!(decide_claim(api.input(&|_| false), &claim), ClaimBindingVerdict::NoAction(_)));
}

#[test]
#[rustfmt::skip] // a table
fn classes_and_modes() {
    check_claims(
        &[],
        &[],
        &[
            ("13-1", &["a 1Gi - A", "b 10Gi - A sc=gold"], "1Gi - P sc=gold", "no action",
                &["a - A", "b me B bc"], "b B bc bd sc=gold cap=10Gi", &[]),
            ("13-2", &["a 1Gi - A sc=gold", "b 10Gi - A"], "1Gi - P", "no action", &["a - A", "b me B bc"],
                "b B bc bd cap=10Gi", &[]),
            ("13-3", &["a 1Gi - A sc=silver", "b 10Gi - A sc=gold"], "1Gi - P sc=gold", "no action",
                &["a - A", "b me B bc"], "b B bc bd sc=gold cap=10Gi", &[]),
            ("13-4", &["v 1Gi - A"], "1Gi - P sc=", "no action", &["v me B bc"], "v B bc bd sc= cap=1Gi",
                &[]),
            ("14-1", &["v 10Gi - A K"], "10Gi - P K", "no action", &["v me B bc"], "v B bc bd cap=10Gi", &[]),
            ("14-3", &["v 10Gi - A"], "10Gi - P K", "wait", &["v - A"], "- P", &["N FailedBinding"]),
            ("14-4", &["v 10Gi - A K"], "10Gi - P", "wait", &["v - A"], "- P", &["N FailedBinding"]),
            ("14-5", &["v 10Gi - A sc=gold"], "10Gi - P K sc=gold", "wait", &["v - A"], "- P sc=gold",
                &["W ProvisioningFailed"]),
            ("14-5-1", &["v 10Gi - A sc=gold"], "10Gi - P sc=silver", "wait", &["v - A"], "- P sc=silver",
                &["W ProvisioningFailed"]),
            ("14-5-2", &["v 10Gi - A sc=gold"], "10Gi v P sc=silver", "wait", &["v - A"], "v P sc=silver",
                &["W VolumeMismatch"]),
            ("14-7", &["v 10Gi me/0 A K"], "10Gi - P K", "no action", &["v me B"], "v B bc bd cap=10Gi", &[]),
            ("14-8", &["v 10Gi - A K"], "10Gi v P", "wait", &["v - A"], "v P", &["W VolumeMismatch"]),
            ("14-8-1", &["v 10Gi me/0 A K"], "10Gi - P", "wait", &["v me/0 A"], "- P", &["N FailedBinding"]),
        ],
    );
}

#[test]
#[rustfmt::skip] // a table
fn claims_that_need_provisioning() {
    check_claims(
        &[
            "ext drv",
            "wait drv wffc",
            "unset drv unset",
            "intree kubernetes.io/no-provisioner",
            "gp2 kubernetes.io/aws-ebs",
            "disk kubernetes.io/gce-pd",
            "far elsewhere.example",
        ],
        &["drv", "ebs.csi.aws.com"],
        &[
            ("a local provisioner needs no annotation", &[], "1Gi - P sc=ext", "provisioner ext drv", &[],
                "- P sc=ext", &[]),
            ("an external provisioner", &[], "1Gi - P sc=far", "provisioner far elsewhere.example", &[],
                "- P sp=elsewhere.example sc=far", &[]),
            ("11-26 annotation exists", &[], "1Gi - P sc=far sp=elsewhere.example",
                "provisioner far elsewhere.example", &[], "- P sp=elsewhere.example sc=far", &[]),
            ("annotation of a former provisioner", &[], "1Gi - P sc=ext sp=old", "provisioner ext drv", &[],
                "- P sp=drv sc=ext", &[]),
            ("15-6", &[], "1Gi - P sc=intree", "wait", &[], "- P sc=intree", &["W ProvisioningFailed"]),
            ("in-tree class of a driver of another process", &[], "1Gi - P sc=disk",
                "provisioner disk pd.csi.storage.gke.io", &[], "- P sp=pd.csi.storage.gke.io sc=disk", &[]),
            ("in-tree class of a driver of this process", &[], "1Gi - P sc=gp2",
                "provisioner gp2 ebs.csi.aws.com", &[], "- P sp=ebs.csi.aws.com sc=gp2", &[]),
            ("annotation of an in-tree plugin", &[], "1Gi - P sc=gp2 sp=kubernetes.io/aws-ebs",
                "provisioner gp2 ebs.csi.aws.com", &[], "- P sp=ebs.csi.aws.com sc=gp2", &[]),
            ("15-7", &[], "1Gi - P beta=yes", "wait", &[], "- P", &["W ProvisioningFailed"]),
            ("WaitForFirstConsumer without a node", &[], "1Gi - P sc=wait", "wait", &[], "- P sc=wait",
                &["N WaitForFirstConsumer"]),
            ("WaitForFirstConsumer with a selected node", &[], "1Gi - P sc=wait sn=n", "provisioner wait drv",
                &[], "- P sc=wait", &[]),
            ("class without volumeBindingMode", &[], "1Gi - P sc=unset", "fail", &[], "- P sc=unset", &[]),
            ("an invalid phase is reset first", &[], "1Gi - B sc=ext", "provisioner ext drv", &[],
                "- P sc=ext", &[]),
            ("a claim being deleted is not provisioned", &[], "1Gi - P sc=ext deleting", "no action", &[],
                "- P sc=ext", &[]),
            ("12-4 the volume is created", &["pvc 1Gi me P sc=ext dp=drv csi del"], "1Gi - P sc=ext",
                "no action", &["pvc me B"], "pvc B bc bd sp=drv sc=ext cap=1Gi", &[]),
            ("12-4 by an external provisioner", &["pvc 1Gi me A sc=far dp=elsewhere.example csi"],
                "1Gi - P sc=far sp=elsewhere.example", "no action", &["pvc me B"],
                "pvc B bc bd sp=elsewhere.example sc=far cap=1Gi", &[]),
            ("the node expansion is not complete", &["v 2Gi - A pre=1Gi"], "2Gi - P", "no action",
                &["v me B bc"], "v B bc bd cap=1Gi", &[]),
        ],
    );
}

#[test]
#[rustfmt::skip] // a table
fn the_default_class_is_assigned_to_claims_without_a_class() {
    let both = ["gold drv default", "silver drv default"];
    check_claims(&[], &["drv"], &[("15-1", &[], "1Gi - P", "wait", &[], "- P", &["N FailedBinding"])]);
    check_claims(
        &both,
        &["drv"],
        &[("15-2", &[], "1Gi - P", "provisioner gold drv", &[], "- P sc=gold", &[])],
    );
    check_claims(
        &["gold drv default", "silver drv default 5"],
        &["drv"],
        &[("newest", &[], "1Gi - P", "provisioner silver drv", &[], "- P sc=silver", &[])],
    );
    check_claims(
        &["gold drv default", "silver drv"],
        &["drv"],
        &[
            ("15-3", &[], "1Gi test B sc=copper bc bd", "no action", &[], "test L bc bd sc=copper",
                &["W ClaimLost"]),
            ("15-4", &[], "1Gi test B sc=copper", "no action", &[], "test P sc=copper", &[]),
            ("15-5", &[], "1Gi - P", "provisioner gold drv", &[], "- P sc=gold", &[]),
            ("a volume without a class has precedence", &["v 1Gi - A"], "1Gi - P", "no action",
                &["v me B bc"], "v B bc bd cap=1Gi", &[]),
            ("an empty class", &[], "1Gi - P sc=", "wait", &[], "- P sc=", &["N FailedBinding"]),
        ],
    );
}

#[test]
#[rustfmt::skip] // a table
fn the_volume_phase_follows_its_claim() {
    /// Name, volume, cached claim, live claim, last verdict, volume afterwards, events.
    type Case = (
        &'static str,
        &'static str,
        Option<&'static str>,
        Option<&'static str>,
        &'static str,
        &'static str,
        &'static [&'static str],
    );
    let cases: &[Case] = &[
        ("4-1", "v 10Gi - A", None, None, "no action", "v - A", &[]),
        ("10-1", "v 1Gi - P", None, None, "no action", "v - A", &[]),
        ("4-2", "v 10Gi me/0 A", None, None, "no action", "v me/0 A", &[]),
        ("4-3", "v 10Gi me B", None, None, "no action", "v me R", &[]),
        ("4-4", "v 10Gi me/x B", Some("10Gi v B bd"), Some("10Gi v B bd"), "no action", "v me/x R", &[]),
        ("4-5a", "v 10Gi me B bc", Some("10Gi - P"), None, "enqueue claim", "v me B bc", &[]),
        ("4-5b", "v 10Gi me B", Some("10Gi - P"), None, "enqueue claim", "v me B", &[]),
        ("4-6", "v 10Gi me A", Some("10Gi v B"), None, "no action", "v me B", &[]),
        ("4-7", "v 10Gi me B bc", Some("10Gi o B"), None, "no action", "v - A", &[]),
        ("4-8", "v 10Gi me B", Some("10Gi o B"), None, "no action", "v me/0 A", &[]),
        ("4-9", "v 10Gi me A del", Some("10Gi v B"), None, "no action", "v me B", &[]),
        ("4-10", "v 10Gi me A del", None, None, "no action", "v me F", &["W VolumeFailedDelete"]),
        ("4-11", "v 10Gi me A del", None, Some("10Gi v B"), "no action", "v me B", &[]),
        ("6-3", "v 1Gi me B rec", None, None, "no action", "v me F", &["W VolumeFailedRecycle"]),
        ("6-10", "v 1Gi me B odd", None, None, "no action", "v me F", &["W VolumeUnknownReclaimPolicy"]),
        ("8-10-1", "v 1Gi me B bc del csi dp=external.io/test", None, None, "no action", "v me R bc", &[]),
        ("8-10-2", "v 1Gi me B bc del csi", None, None, "no action", "v me R bc", &[]),
        ("8-10-3", "v 1Gi me B del dp=kubernetes.io/gce-pd mt=pd.csi.storage.gke.io", None, None,
            "no action", "v me R mt=pd.csi.storage.gke.io", &[]),
        ("5-9 the plugin is not migrated any more",
            "v 1Gi - A del dp=kubernetes.io/rbd mt=rbd.csi.ceph.com fin=EXT", None, None,
            "no action", "v - A", &[]),
        ("8-10-3 the migration is not recorded", "v 1Gi me B del csi dp=kubernetes.io/aws-ebs", None, None,
            "no action", "v me R mt=ebs.csi.aws.com", &[]),
        ("13-2", "v 1Gi - A del csi fin=EXT+x", None, None, "no action", "v - A fin=EXT+x", &[]),
        ("13-5 without a deleter", "v 1Gi - A del dp=kubernetes.io/rbd fin=EXT", None, None, "no action",
            "v - A", &[]),
        ("13-6 without a deleter", "v 1Gi - A del dp=kubernetes.io/rbd fin=EXT+x+IT", None, None, "no action",
            "v - A fin=x+IT", &[]),
        ("13-7", "v 1Gi - A del dp=kubernetes.io/gce-pd mt=pd.csi.storage.gke.io fin=EXT+IT", None, None,
            "no action", "v - A mt=pd.csi.storage.gke.io fin=EXT", &[]),
        ("13-12", "v 1Gi - A dp=kubernetes.io/rbd", None, None, "no action", "v - A", &[]),
        ("13-14", "v 1Gi - A dp=kubernetes.io/rbd fin=IT", None, None, "no action", "v - A", &[]),
        ("13-15", "v 1Gi - A fin=IT", None, None, "no action", "v - A fin=IT", &[]),
        ("8-12 loser of a double provisioning", "v 1Gi me B del csi dp=external.io/test", Some("10Gi o B"),
            None, "no action", "v me R", &[]),
        ("a failed volume gets one event", "v 1Gi me F odd", None, None, "no action", "v me F", &[]),
        ("a released volume of a bound claim", "v 1Gi me R", Some("1Gi v B"), None, "no action", "v me B",
            &[]),
        ("the claimRef was removed by a user", "v 1Gi - R", None, None, "no action", "v - A", &[]),
        ("14-13", "v 1Gi me A bc", Some("1Gi - P K"), None, "mismatch", "v me A bc",
            &["W VolumeMismatch", "W VolumeMismatch"]),
        ("14-13-1", "v 1Gi me A bc K", Some("1Gi - P"), None, "mismatch", "v me A bc",
            &["W VolumeMismatch", "W VolumeMismatch"]),
        ("14-14", "v 1Gi me A bc K", Some("1Gi - P K"), None, "enqueue claim", "v me A bc", &[]),
    ];
    for (id, spec, cached, live, end, after, events) in cases {
        let mut api = FakeApi::new(&[], &[spec], cached.as_slice());
        assert_eq!(api.reconcile_volume("v", *live), *end, "{id}");
        assert_eq!(api.show().0, [*after], "{id}");
        assert_eq!(api.events, *events, "{id}");
    }
}

#[test]
fn the_message_of_a_volume_without_a_deleter_is_upstreams() {
    let message = |spec: &str| {
        let verdict = decide_volume(FakeApi::default().input(&|_| false), &pv(spec), None);
        let VolumeBindingVerdict::Apply(VolumeEffect::SetPhase(VolumePhase::Failed, message), Some(event)) =
            verdict
        else {
            panic!("{verdict:?}")
        };
        assert_eq!((event.reason, &event.text), ("VolumeFailedDelete", &message));
        message
    };
    let by_source = "error getting deleter volume plugin for volume \"v\": ";
    #[rustfmt::skip] // one row per volume
    let table = [
        ("v 1Gi me R del src=nfs", format!("{by_source}no deletable volume plugin matched")),
        ("v 1Gi me R del src=rbd", format!("{by_source}no volume plugin matched")),
        ("v 1Gi me R del src=rbd dp=kubernetes.io/rbd",
            "no volume plugin matched name: kubernetes.io/rbd".to_owned()),
    ];
    for (spec, expected) in table {
        assert_eq!(message(spec), expected, "{spec}");
    }
}

#[test]
fn a_volume_reserved_by_a_second_binder_is_released() {
    let mut api = FakeApi::new(&[], &["a 1Gi me B bc", "b 1Gi me B bc"], &["1Gi a B bc bd"]);
    assert_eq!(api.reconcile_volume("b", None), "no action");
    assert_eq!(api.reconcile_volume("a", None), "no action");
    assert_eq!(api.reconcile_claim(&[]), "no action");
    assert_eq!(
        api.show(),
        (vec!["a me B bc".to_owned(), "b - A".to_owned()], "a B bc bd cap=1Gi".to_owned())
    );
}

#[test]
#[rustfmt::skip] // a table
fn finds_the_smallest_volume_of_the_smallest_set_of_modes() {
    let volumes = [
        "gce-pd-1 1G me/x B", "gce-pd-5 5G - A", "gce-pd-10 10G - A", "gce-pd-20 20G me/x B",
        "nfs-1 1G - A m=RWO+ROX+RWX", "nfs-5 5G - A m=RWO+ROX+RWX", "nfs-10 10G - A m=RWO+ROX+RWX",
        "gce-pd-2 20000G - A m=RWO l=should-exist:true",
        "gce-pd-silver1 10000G - A m=RWO sc=silver l=should-exist:true",
        "gce-pd-silver2 100G - A m=RWO sc=silver",
        "gce-pd-gold 50G - A m=RWO sc=gold", "local-pd-very-large 200E - A m=RWO+ROX+RWX sc=large",
        "local-pd-extremely-large 800E - A m=RWO+ROX+RWX sc=large", "gce-pd-vac-silver1 100G - A vac=silver",
    ];
    let api = FakeApi::new(&[], &volumes, &[]);
    let cases = [
        ("8G - P", Some("gce-pd-10")),
        ("5G - P m=ROX+RWO+RWX", Some("nfs-5")),
        ("1G - P", Some("gce-pd-5")),
        ("999G - P", None),
        ("999G - P sel=should-not-exist:true", None),
        ("20000G - P sel=should-exist:true", None),
        ("20000G - P m=RWO sel=should-exist:true", Some("gce-pd-2")),
        ("1G - P vac=silver", Some("gce-pd-vac-silver1")),
        ("1G - P vac=non-existing", None),
        ("1G - P m=RWO sc=silver sel=should-exist:true", Some("gce-pd-silver1")),
        ("1G - P m=RWO sc=silver", Some("gce-pd-silver2")),
        ("1E - P m=RWO sc=large", Some("local-pd-very-large")),
        ("800E - P m=RWO sc=large", Some("local-pd-extremely-large")),
        ("950E - P m=RWO sc=large", None),
    ];
    for (spec, expected) in cases {
        let found = super::find_volume(api.input(&|_| false), &pvc(spec), false).unwrap();
        assert_eq!(found.as_ref().map(|volume| volume.name.as_str()), expected, "{spec}");
        let delayed = super::find_volume(api.input(&|_| false), &pvc(spec), true).unwrap();
        assert!(delayed.is_none(), "WaitForFirstConsumer: {spec}");
    }
}

#[test]
fn a_volume_reserved_for_the_claim_comes_first_if_it_fits() {
    let cases = [
        (vec!["a 1Gi oth A", "b 5Gi - A", "c 8Gi me/0 A"], Some("c")),
        (vec!["a 1Gi - A", "b 1Mi me/0 A"], Some("a")),
        (vec!["a 1Gi - A", "b 5Gi me/0 A m=ROX"], Some("a")),
        // Upstream would bind the free volume with the smaller set of modes.
        (vec!["a 1Gi - A m=RWO", "b 5Gi me/0 A m=RWO+ROX+RWX"], Some("b")),
    ];
    for (volumes, expected) in cases {
        let api = FakeApi::new(&[], &volumes, &[]);
        let found = super::find_volume(api.input(&|_| false), &pvc("1Gi - P m=RWO"), false).unwrap();
        assert_eq!(found.as_ref().map(|volume| volume.name.as_str()), expected, "{volumes:?}");
    }
}

#[test]
fn an_undecodable_object_changes_no_phase() {
    let broken = |kind: &str| {
        let spec = serde_json::json!({"accessModes": ["Sometimes"], "volumeName": "v"});
        let metadata = serde_json::json!({
            "namespace": "default", "name": "me", "uid": CLAIM_UID, "resourceVersion": "1",
        });
        serde_json::json!({"kind": kind, "metadata": metadata, "spec": spec}).to_string()
    };
    let mut api = FakeApi::new(&[], &["v 1Gi me B del csi"], &[]);
    api.cache
        .claims
        .apply(cofferdam_cluster::decode::object::<Claim>(&broken("PersistentVolumeClaim")).unwrap());
    assert_eq!(api.reconcile_volume("v", None), "no action");
    assert_eq!(api.show().0, ["v me B"], "not released: the claim exists");

    let mut api = FakeApi::new(&[], &[], &["1Gi me B bc bd"]);
    api.cache
        .volumes
        .apply(cofferdam_cluster::decode::object::<Volume>(&broken("PersistentVolume")).unwrap());
    assert_eq!(api.reconcile_claim(&[]), "no action");
    assert_eq!(api.show().1, "me B bc bd cap=1Gi", "not lost: the volume exists");
}

#[test]
fn a_volume_locked_by_another_claim_is_skipped() {
    let api = FakeApi::new(&[], &["small 1Gi - A", "large 2Gi - A"], &[]);
    let found = |input: BindingInput<'_>| {
        super::find_volume(input, &pvc("1Gi - P"), false).unwrap().map(|volume| volume.name.to_string())
    };
    let free = api.input(&|_| false);
    assert_eq!(found(free).as_deref(), Some("small"));
    assert_eq!(
        found(BindingInput { is_locked_by_other: &|name| name.as_str() == "small", ..free }).as_deref(),
        Some("large")
    );
    assert_eq!(found(BindingInput { is_locked_by_other: &|_| true, ..free }), None);
}

#[test]
fn verdicts_carry_their_reason() {
    let api = FakeApi::new(&[], &["v 1Gi - A"], &[]);
    let claim = Arc::new(pvc("2Gi v P"));
    let verdict = super::decide_claim(api.input(&|_| false), &claim);
    let ClaimBindingVerdict::Wait(event) = verdict else { panic!("{verdict:?}") };
    assert_eq!(event.text, "Cannot bind to requested volume \"v\": requested PV is too small");
}

/// A process may end after each of two concurrent writes, and each may conflict with another client.
#[test]
fn every_subset_of_the_concurrent_writes_of_a_binding_leads_to_the_same_state() {
    const VOLUME: &str = "v 1Gi me P csi dp=drv fin=EXT del";
    let local: &[&str] = &["drv"];
    let converged = {
        let mut api = FakeApi::new(&[], &[VOLUME], &["1Gi - P"]);
        assert_eq!(api.reconcile_claim(local), "no action");
        api.show()
    };
    for performed in [[false, false], [true, false], [false, true]] {
        for begins_with_volume in [false, true] {
            let mut api = FakeApi::new(&[], &[VOLUME], &["1Gi - P"]);
            let claim = api.cache.claims.get(&key()).into_object().unwrap();
            let ClaimBindingVerdict::ApplyBoth(effects) = decide_claim(api.input(&|_| true), &claim) else {
                panic!("the writes are not concurrent");
            };
            for (effect, _) in effects.into_iter().zip(performed).filter(|(_, performed)| *performed) {
                api.perform(&claim, effect);
            }
            if begins_with_volume {
                api.reconcile_volume("v", None);
            }
            assert_eq!(api.reconcile_claim(local), "no action");
            assert_eq!(api.show(), converged, "{performed:?} {begins_with_volume}");
        }
    }
}

#[test]
fn a_volume_that_does_not_outlive_its_deletion_is_marked_before_its_claim_is_bound() {
    for (volume, claim) in [
        ("v 1Gi me P csi dp=drv del", "1Gi - P"),
        ("v 1Gi me P csi dp=drv fin=EXT", "1Gi - P"),
        ("v 1Gi me P csi dp=drv fin=EXT del deleting", "1Gi v P"),
    ] {
        let api = FakeApi::new(&[], &[volume], &[claim]);
        let claim = api.cache.claims.get(&key()).into_object().unwrap();
        let verdict = decide_claim(api.input(&|_| true), &claim);
        assert!(
            matches!(verdict, ClaimBindingVerdict::Apply(ClaimEffect::MarkVolumeBound(_), None)),
            "{volume}: {verdict:?}"
        );
    }
}

#[test]
fn the_phase_of_a_volume_is_left_to_the_claim_that_is_writing_it() {
    let api = FakeApi::new(&[], &["v 1Gi me P"], &["1Gi v P bd"]);
    let volume = api.cache.volumes.get(&"v".into()).into_object().unwrap();
    let input = BindingInput { is_locked_by_other: &|_| true, ..api.input(&|_| false) };
    assert_eq!(decide_volume(input, &volume, None), VolumeBindingVerdict::EnqueueClaim(key()));
}

#[test]
fn refreshing_one_claim_does_not_release_the_volume_of_another() {
    let api = FakeApi::new(&[], &["v 1Gi me B"], &[]);
    let current = api.cache.volumes.get(&"v".into()).into_object().unwrap();
    let other = ClaimRef { uid: Some("another".into()), ..current.claim_ref.clone().unwrap() };
    let decide =
        |refreshed_claim: Option<&ClaimRef>| decide_volume(api.input(&|_| false), &current, refreshed_claim);
    // After the live read of the other claim the volume was reserved for this claim, whose watch event is
    // delayed.
    assert!(matches!(
        decide(Some(&other)),
        VolumeBindingVerdict::Apply(VolumeEffect::RefreshBeforeRelease(_), _)
    ));
    assert!(matches!(
        decide(current.claim_ref.as_ref()),
        VolumeBindingVerdict::Apply(VolumeEffect::SetPhase(VolumePhase::Released, _), _)
    ));
}
