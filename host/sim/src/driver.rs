//! An array and its driver, scripted: what it holds outlives the processes that call it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_backend::{Backend, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{
        Ability, CreateVolume, CreatedVolume, Description, ErrorKind, Finality, Placement, Readiness,
        StorageError, ValidateVolume, Validation,
    },
};
use futures::future::BoxFuture;

use crate::{
    effects::{Effect, Effects},
    simulation::UserAction,
};

/// What goes wrong with one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Nothing happens, and the driver says so.
    Refuse(ErrorKind),
    /// Nothing happens, and nobody knows.
    LostRequest,
    /// It happens, and nobody hears of it.
    LostAnswer,
    /// It takes this long.
    Slow(Duration),
    /// A user does this while the driver is at work; then all is well.
    Meanwhile(UserAction),
    /// The volume has this many bytes, whatever was asked for.
    Size(u64),
}

/// A volume of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayVolume {
    /// The request that made it.
    pub request: CreateVolume,
    /// Its size in bytes.
    pub size: u64,
}

#[derive(Default)]
struct Array {
    volumes: BTreeMap<String, ArrayVolume>,
    create_faults: VecDeque<Fault>,
    delete_faults: VecDeque<Fault>,
    calls: Vec<String>,
    violations: Vec<String>,
    /// Requests that may still take effect: whoever asks again asks the same.
    asked: BTreeMap<String, CreateVolume>,
}

/// What a user does, handed to whoever can do it.
pub(crate) type Users = Arc<dyn Fn(UserAction) -> BoxFuture<'static, ()> + Send + Sync>;

/// The array, shared by all processes of a simulation.
#[derive(Clone)]
pub struct ScriptedDriver {
    array: Arc<Mutex<Array>>,
    users: Users,
}

impl ScriptedDriver {
    pub(crate) fn new(create_faults: Vec<Fault>, delete_faults: Vec<Fault>, users: Users) -> Self {
        let array = Array {
            create_faults: create_faults.into(),
            delete_faults: delete_faults.into(),
            ..Array::default()
        };
        Self { array: Arc::new(Mutex::new(array)), users }
    }

    /// Volumes by name.
    pub fn volumes(&self) -> BTreeMap<String, ArrayVolume> {
        self.lock().volumes.clone()
    }

    /// Every call that reached the driver.
    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// Breaches of the contract: the same name with other arguments before the last answer was final.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// The driver as one process sees it.
    pub(crate) fn for_process(&self, name: &str, effects: Arc<Effects>) -> Arc<dyn Backend> {
        let description = Description {
            name: name.into(),
            version: "1".to_owned(),
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: Vec::new(),
        };
        Arc::new(MortalDriver { driver: self.clone(), description, abilities: BTreeSet::new(), effects })
    }

    fn lock(&self) -> MutexGuard<'_, Array> {
        self.array.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, request: CreateVolume, size: Option<u64>) -> Result<CreatedVolume, StorageError> {
        let mut array = self.lock();
        let size = size.or(request.capacity.required).unwrap_or_default();
        if let Some(there) = array.volumes.get(&request.name)
            && there.request != request
        {
            let message = format!("{} was asked for with other arguments", request.name);
            array.violations.push(message.clone());
            return Err(StorageError::last(ErrorKind::AlreadyExists, message));
        }
        let name = request.name.clone();
        let volume = array.volumes.entry(name.clone()).or_insert(ArrayVolume { request, size });
        Ok(CreatedVolume {
            handle: VolumeHandle::from(format!("handle-{name}")),
            capacity: Some(volume.size),
            context: BTreeMap::new(),
            topology: Vec::new(),
            attachment: None,
        })
    }
}

struct MortalDriver {
    driver: ScriptedDriver,
    description: Description,
    abilities: BTreeSet<Ability>,
    effects: Arc<Effects>,
}

impl MortalDriver {
    async fn fault(&self, fault: Option<Fault>) -> Result<(bool, Option<u64>), StorageError> {
        match fault {
            None => Ok((false, None)),
            Some(Fault::Refuse(kind)) => Err(StorageError::last(kind, "the array refuses")),
            Some(Fault::LostRequest) => {
                Err(StorageError::unknown(ErrorKind::Unavailable, "the request was lost"))
            }
            Some(Fault::LostAnswer) => Ok((true, None)),
            Some(Fault::Slow(time)) => {
                tokio::time::sleep(time).await;
                Ok((false, None))
            }
            Some(Fault::Meanwhile(action)) => {
                (self.driver.users)(action).await;
                // Long enough for every watch to tell.
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok((false, None))
            }
            Some(Fault::Size(bytes)) => Ok((false, Some(bytes))),
        }
    }
}

fn lost() -> StorageError {
    StorageError {
        kind: ErrorKind::DeadlineExceeded,
        message: "the answer was lost".to_owned(),
        retry_after_ms: None,
        finality: Finality::Unknown,
    }
}

impl Backend for MortalDriver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.abilities
    }

    fn probe(&self, _: Call) -> BoxFuture<'_, Result<Readiness, StorageError>> {
        Box::pin(async { Ok(Readiness::Ready) })
    }

    fn create_volume(
        &self,
        _: Call,
        request: CreateVolume,
    ) -> BoxFuture<'_, Result<CreatedVolume, StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let call = format!("create {}", request.name);
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                if array.asked.get(&request.name).is_some_and(|before| *before != request) {
                    array.violations.push(format!("{} was asked for in two ways", request.name));
                }
                array.asked.insert(request.name.clone(), request.clone());
                let fault = array.create_faults.pop_front();
                if matches!(fault, Some(Fault::Refuse(_))) {
                    array.asked.remove(&request.name);
                }
                fault
            };
            let (answer_lost, size) = self.fault(fault).await?;
            let answer = self.driver.make(request, size);
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { answer }
        })
    }

    fn delete_volume(&self, _: Call, handle: VolumeHandle) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.effects.gate().await;
            let call = format!("delete {handle}");
            let fault = {
                let mut array = self.driver.lock();
                array.calls.push(call.clone());
                array.delete_faults.pop_front()
            };
            let (answer_lost, _) = self.fault(fault).await?;
            {
                let mut array = self.driver.lock();
                array.volumes.retain(|name, _| format!("handle-{name}") != handle.as_str());
                array.asked.retain(|name, _| format!("handle-{name}") != handle.as_str());
            }
            self.effects.note(Effect::Call(call)).await;
            if answer_lost { Err(lost()) } else { Ok(()) }
        })
    }

    fn validate_volume(&self, _: Call, _: ValidateVolume) -> BoxFuture<'_, Result<Validation, StorageError>> {
        Box::pin(async { Ok(Validation::Confirmed) })
    }
}
