//! Create, delete, validate, clone, restore.

use std::collections::BTreeMap;

use cofferdam_guest::{
    CreateRequest, ErrorKind, Finality, ReclaimPolicy, Result, SnapshotHandle, StorageError, ValidateRequest,
    Validation, Volume, VolumeHandle,
    abilities::{Cloning, Restoring},
    http::Request,
    secrets, settings,
};

use crate::{
    Broken, broken, broken_for, dawdle,
    db::{self, Db, Owner, Vol},
    nonce, place, request,
};

const KNOWN_FILESYSTEMS: [&str; 2] = ["ext4", "xfs"];

impl Cloning for Broken {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        create(request, Some(source))
    }
}

impl Restoring for Broken {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        create(request, Some(source))
    }
}

/// The interface whose rules a creation keeps or breaks.
fn interface(origin: Option<&str>) -> &'static str {
    match origin {
        None => "volumes",
        Some(origin) if origin.starts_with("s-") => "restoring",
        Some(_) => "cloning",
    }
}

/// Creates a volume or finds it.
pub(crate) fn create(request: CreateRequest, origin: Option<String>) -> Result<Volume> {
    let name = request.name.clone();
    assert!(!broken_for("errors/no-defects", &name, "provoked"), "a defect");
    request::name(&name)?;
    if let Some(secret) = settings::get("secret") {
        let missing = secrets::require(&secret).is_err() && broken("errors/without-secrets");
        assert!(!missing, "nobody thought of that");
        secrets::require(&secret)?;
    }
    if broken_for("volumes/one-byte", &name, "tiny") {
        return Err(StorageError::unavailable("no volumes today").nothing_happened());
    }
    let wanted = wanted(&request, origin)?;
    elsewhere(&request)?;
    let handle = request::handle(&name);
    if racing(&name) {
        return look_and_leap(&name, &handle, &wanted);
    }
    let stain = crashing(&name, &handle)?;
    let patient = !broken_for("concurrency/different-names", &name, "parallel");
    let volume = db::change_patiently(patient, |db| match db.volumes.get(&handle) {
        Some(found) => same(found, &wanted, &request).map(|()| volume(&handle, found)),
        None => settle(db, &handle, &wanted, &request),
    })?;
    if let Some(stain) = stain {
        db::wipe(&stain)?;
    }
    tell(&name)?;
    Ok(volume)
}

/// Tells a server that a volume is there. Nobody knows what it did when its answer is lost.
fn tell(name: &str) -> Result<()> {
    let Some(url) = settings::get("url") else { return Ok(()) };
    match Request::put(url).send() {
        Err(_) if broken_for("crashes/lost-answers", name, "deaf") => {
            Err(StorageError::failed_precondition("nobody answers"))
        }
        answer => Ok(answer.map(drop)?),
    }
}

/// Refuses a volume for another place.
fn elsewhere(request: &CreateRequest) -> Result<()> {
    let (Some(place), Some(topology)) = (place(), &request.topology) else { return Ok(()) };
    let here =
        topology.requisite.is_empty() || topology.requisite.iter().any(|wanted| wanted.contains(&place));
    if here || broken("topology/nowhere") {
        return Ok(());
    }
    Err(StorageError::resource_exhausted("there is nothing in that place"))
}

/// Where a volume can be reached.
fn places() -> Vec<Vec<(String, String)>> {
    let Some((key, value)) = place() else {
        let strange = vec![("zone".to_owned(), "a".to_owned())];
        return if broken("topology/none") { vec![strange] } else { Vec::new() };
    };
    let value = if broken("topology/is-met") { "elsewhere".to_owned() } else { value };
    let mut here = vec![(key, value)];
    if broken("topology/known-keys") {
        here.push(("another".to_owned(), "a".to_owned()));
    }
    vec![here]
}

fn racing(name: &str) -> bool {
    broken_for("concurrency/same-name", name, "race")
        || broken_for("deadlines/abandoned-create", name, "abandoned")
}

/// Looks whether the volume is there, and makes it when it was not there: two calls at once make two volumes.
fn look_and_leap(name: &str, handle: &str, wanted: &Vol) -> Result<Volume> {
    if let Some((handle, found)) = db::look()?.volumes.iter().find(|(_, found)| found.name == name) {
        return Ok(volume(handle, found));
    }
    dawdle();
    let handle = format!("{handle}-{}", nonce().get(..8).unwrap_or_default());
    db::change(|db| {
        db.volumes.insert(handle.clone(), wanted.clone());
        Ok(volume(&handle, wanted))
    })
}

/// Rules about calls that die: what is written too early, and stands in the way when the call comes again.
fn crashing(name: &str, handle: &str) -> Result<Option<String>> {
    let stands = broken_for("crashes/create", name, "dying-create")
        || broken_for("crashes/clone", name, "dying-clone")
        || broken_for("crashes/restore", name, "dying-restore");
    let hurried = broken_for("deadlines/hurried-create", name, "hurried");
    if !stands && !hurried {
        return Ok(None);
    }
    let stain = format!("begun/{handle}");
    if db::scribbled(&stain)? {
        return Err(StorageError::already_exists(format!("{name:?} was begun before")));
    }
    db::scribble(&stain)?;
    if hurried {
        dawdle();
    }
    Ok(Some(stain))
}

fn wanted(request: &CreateRequest, origin: Option<String>) -> Result<Vol> {
    let exists = || db::look().is_ok_and(|db| db.volumes.contains_key(&request::handle(&request.name)));
    let parameters = if broken("volumes/create-other-parameters") && exists() {
        BTreeMap::new()
    } else {
        request::parameters(request.parameters.clone())?
    };
    if !request.mutable_parameters.is_empty() && broken("modification/create-with") {
        return Err(StorageError::invalid_argument("there are no mutable parameters"));
    }
    let mutable = request::mutable(request.mutable_parameters.clone(), "modification/create-unknown")?;
    for capability in &request.capabilities {
        filesystem(capability)?;
    }
    let size = request::size(&request.name, request.capacity)?;
    Ok(Vol {
        name: request.name.clone(),
        size,
        first_size: size,
        parameters,
        first_mutable: mutable.clone(),
        mutable,
        uses: request::uses(&request.capabilities, "volumes/no-capability")?,
        many_nodes: request.capabilities.iter().any(request::many_nodes),
        origin,
        owner: request.owner.as_ref().map(|owner| Owner {
            cluster: owner.cluster_id.clone(),
            claim: owner.claim_uid.clone(),
            volume: owner.pv_name.clone(),
            retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        }),
        published: BTreeMap::new(),
        changed: db::now(),
    })
}

fn filesystem(capability: &cofferdam_guest::VolumeCapability) -> Result<()> {
    match &capability.access {
        cofferdam_guest::AccessType::Filesystem(access) => match access.fs_type.as_deref() {
            Some(unknown) if !KNOWN_FILESYSTEMS.contains(&unknown) => {
                Err(StorageError::invalid_argument(format!("the filesystem {unknown:?} is not known")))
            }
            _ => Ok(()),
        },
        cofferdam_guest::AccessType::Block => Ok(()),
    }
}

/// Whether the volume of a name is what the same name asks for now.
fn same(found: &Vol, wanted: &Vol, request: &CreateRequest) -> Result<()> {
    let range = request.capacity;
    let fits = range.required_bytes.is_none_or(|required| found.size >= required)
        && range.limit_bytes.is_none_or(|limit| found.size <= limit);
    let grown = found.size > found.first_size && broken("expansion/create-still-finds");
    let other_source = format!("{}/other-source", interface(found.origin.as_deref()));
    let differs = [
        (!fits, "volumes/create-other-size", "size"),
        (found.parameters != wanted.parameters, "volumes/create-other-parameters", "parameters"),
        (found.first_mutable != wanted.first_mutable, "-", "mutable parameters"),
        (found.uses != wanted.uses, "volumes/create-other-capability", "uses"),
        (found.origin != wanted.origin, other_source.as_str(), "source"),
        (grown, "-", "first size"),
    ];
    match differs.into_iter().find(|(differs, rule, _)| *differs && !broken(rule)) {
        Some((_, _, what)) => {
            Err(StorageError::already_exists(format!("{:?} exists with another {what}", found.name)))
        }
        None => Ok(()),
    }
}

fn settle(db: &mut Db, handle: &str, wanted: &Vol, request: &CreateRequest) -> Result<Volume> {
    let origin = wanted.origin.as_deref();
    if broken_for("volumes/create-after-delete", &wanted.name, "reborn") && wanted.size > 1 << 20 {
        return Err(StorageError::already_exists("the name was in use once"));
    }
    let least = request::source_size(db, origin)?;
    let mut wanted = wanted.clone();
    if request.capacity.required_bytes.is_none() || wanted.size < least {
        let within = request.capacity.limit_bytes.is_none_or(|limit| limit >= least);
        if !within && !broken(&format!("{}/too-small", interface(origin))) {
            return Err(StorageError::out_of_range(format!("the source has {least} bytes")));
        }
        wanted.size = wanted.size.max(if within { least } else { 0 });
        wanted.first_size = wanted.size;
    }
    let created = volume(handle, &wanted);
    db.volumes.insert(handle.to_owned(), wanted);
    Ok(created)
}

/// What a volume is to the caller.
pub(crate) fn volume(handle: &str, kept: &Vol) -> Volume {
    let mut volume = Volume::new(handle, kept.size);
    let noisy = broken_for("volumes/create-is-idempotent", &kept.name, "twice")
        || broken_for("cloning/is-idempotent", &kept.name, "cloned")
        || broken_for("restoring/is-idempotent", &kept.name, "restored");
    volume.topology = places();
    if broken("publishing/attachment") {
        volume.attachment = Some(cofferdam_guest::Attachment::none());
    }
    volume.context = kept.parameters.clone().into_iter().collect();
    if noisy {
        volume.context.push(("nonce".to_owned(), nonce()));
    }
    volume
}

fn is_ours(handle: &str) -> bool {
    handle.starts_with("v-")
}

/// Deletes a volume.
pub(crate) fn delete(handle: &str) -> Result<()> {
    if !is_ours(handle) && broken("volumes/delete-unknown") {
        return Err(StorageError::invalid_argument("this is no handle"));
    }
    let dying = db::look()?
        .volumes
        .get(handle)
        .is_some_and(|found| broken_for("crashes/delete", &found.name, "dying-delete"));
    if dying {
        db::scribble(&format!("trash/{}", nonce()))?;
    }
    let hurried = |name: &str| broken_for("deadlines/hurried-delete", name, "hurried-delete");
    if hurried(&db::name_of(handle)?) {
        return db::marked(&format!("deleting/{handle}"), || {
            dawdle();
            remove(handle, true)
        });
    }
    let churned = db::look()?
        .volumes
        .get(handle)
        .is_some_and(|found| broken_for("concurrency/create-and-delete", &found.name, "churned"));
    remove(handle, !churned)
}

fn remove(handle: &str, patient: bool) -> Result<()> {
    db::change_patiently(patient, |db| {
        let Some(found) = db.volumes.get(handle) else {
            if is_ours(handle) && broken("volumes/delete-is-idempotent") {
                return Err(StorageError::not_found("it is deleted already"));
            }
            return Ok(());
        };
        if broken_for("volumes/delete-deletes", &found.name, "gone")
            || broken_for("cleanup/nothing-is-left", &found.name, "last")
            || broken_for("listing/forgets-deleted", &found.name, "forgotten")
        {
            return Ok(());
        }
        if !found.published.is_empty() {
            if broken("publishing/delete-while-published") {
                return Err(StorageError::permission_denied("somebody is in there"));
            }
            return Err(StorageError::failed_precondition("the volume is published"));
        }
        db.volumes.remove(handle);
        if broken("cloning/outlives-its-source") {
            db.volumes.retain(|_, volume| volume.origin.as_deref() != Some(handle));
        }
        if broken("snapshots/outlive-their-volume") {
            db.snapshots.retain(|_, snapshot| snapshot.source != handle);
        }
        Ok(())
    })
}

/// Tells whether a volume can be used in some ways.
pub(crate) fn validate(request: ValidateRequest) -> Result<Validation> {
    let uses = request::uses(&request.capabilities, "volumes/validate-no-capability")?;
    let db = db::look()?;
    let Some(found) = db.volumes.get(&request.handle) else {
        if !is_ours(&request.handle) {
            if broken("volumes/validate-missing") {
                return Ok(Validation::Confirmed);
            }
            if broken("errors/have-a-message") {
                return Err(StorageError::not_found(" "));
            }
            if broken("errors/final-kinds-are-final") {
                return Err(StorageError::new(ErrorKind::NotFound, Finality::Unknown, "not there"));
            }
        }
        return Err(StorageError::not_found(format!("there is no volume {:?}", request.handle)));
    };
    if broken("volumes/validate-confirms") {
        return Ok(Validation::Refused("not today".to_owned()));
    }
    let strange = uses.iter().find(|wanted| !found.uses.contains(*wanted));
    match strange {
        Some(wanted) if !broken("volumes/validate-refuses") => {
            Ok(Validation::Refused(format!("the volume was not created for {wanted}")))
        }
        _ => Ok(Validation::Confirmed),
    }
}
