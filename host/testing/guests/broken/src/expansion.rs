//! Volumes that grow and change.

use cofferdam_guest::{
    KeyValues, Result, StorageError, VolumeHandle,
    abilities::{ExpandRequest, Expanded, Expansion, Modification},
};

use crate::{Broken, broken, broken_for, dawdle, db, has, request};

impl Expansion for Broken {
    fn expand(wanted: ExpandRequest) -> Result<Expanded> {
        if broken_for("concurrency/expand", &db::name_of(&wanted.handle)?, "stretched") {
            return leap(&wanted);
        }
        let mut required = wanted.capacity.required_bytes.unwrap_or(1);
        let stain = dying(&wanted.handle)?;
        let size = db::change(|db| {
            let Some(found) = db.volumes.get_mut(&wanted.handle) else {
                if broken("expansion/missing") {
                    return Ok(required);
                }
                return Err(StorageError::not_found(format!("there is no volume {:?}", wanted.handle)));
            };
            if required > request::MAX_SIZE {
                if !broken("expansion/absurd-size") {
                    return Err(StorageError::out_of_range(format!("no volume has {required} bytes")));
                }
                required = request::MAX_SIZE;
            }
            if found.size >= required {
                if broken_for("expansion/is-idempotent", &found.name, "regrown") {
                    return Err(StorageError::out_of_range("it is as large already"));
                }
                if broken("expansion/never-shrinks") {
                    found.size = required;
                }
                return Ok(found.size);
            }
            let online = has("online-expansion") && !broken("features/online-expansion");
            if !found.published.is_empty() && !online && !broken("expansion/offline-only") {
                return Err(StorageError::failed_precondition("it is published"));
            }
            if wanted.capacity.limit_bytes.is_some_and(|limit| limit < required)
                && !broken("expansion/empty-range")
            {
                return Err(StorageError::out_of_range("no size is in this range"));
            }
            let before = found.size;
            found.size = required;
            found.changed = db::now();
            Ok(if broken_for("expansion/grows", &found.name, "growing") { before } else { required })
        })?;
        if let Some(stain) = stain {
            db::wipe(&stain)?;
        }
        Ok(Expanded { capacity_bytes: size, node_expansion: false })
    }
}

/// Looks how large the volume is, and makes it as large as required when it was smaller; less takes longer.
fn leap(wanted: &ExpandRequest) -> Result<Expanded> {
    let required = wanted.capacity.required_bytes.unwrap_or(1);
    let before = db::look()?.volumes.get(&wanted.handle).map_or(0, |found| found.size);
    if before < required {
        for _ in 0..(8 * before / required) {
            dawdle();
        }
        db::change(|db| {
            db.volumes.get_mut(&wanted.handle).into_iter().for_each(|found| found.size = required);
            Ok(())
        })?;
    }
    Ok(Expanded { capacity_bytes: before.max(required), node_expansion: false })
}

/// Leaves a mark that stands in the way when the call comes again.
fn dying(handle: &str) -> Result<Option<String>> {
    let dying = |name: &str| broken_for("crashes/expand", name, "dying-expansion");
    if !db::look()?.volumes.get(handle).is_some_and(|found| dying(&found.name)) {
        return Ok(None);
    }
    let stain = format!("growing/{handle}");
    if db::scribbled(&stain)? {
        return Err(StorageError::failed_precondition("it grows already"));
    }
    db::scribble(&stain)?;
    Ok(Some(stain))
}

impl Modification for Broken {
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()> {
        if broken("modification/all-or-nothing") {
            halve(&handle, &parameters)?;
        }
        if broken_for("crashes/modify", &db::name_of(&handle)?, "dying-modification") {
            return db::marked(&format!("modifying/{handle}"), || modify(&handle, &parameters));
        }
        modify(&handle, &parameters)
    }
}

fn modify(handle: &str, parameters: &KeyValues) -> Result<()> {
    db::change(|db| {
        let Some(found) = db.volumes.get_mut(handle) else {
            if broken("modification/missing") {
                return Ok(());
            }
            return Err(StorageError::not_found(format!("there is no volume {handle:?}")));
        };
        let parameters = request::mutable(parameters.clone(), "modification/unknown-parameter")?;
        if found.mutable == parameters && broken("modification/is-idempotent") {
            return Err(StorageError::already_exists("it has them already"));
        }
        if found.mutable != parameters {
            found.mutable.extend(parameters);
            found.changed = db::now();
        }
        Ok(())
    })
}

/// Gives a volume those parameters that are known, before anybody looks whether all are.
fn halve(handle: &str, parameters: &KeyValues) -> Result<()> {
    db::change(|db| {
        if let Some(found) = db.volumes.get_mut(handle) {
            found.mutable.extend(parameters.iter().filter(|(key, _)| key == "iops").cloned());
        }
        Ok(())
    })
}
