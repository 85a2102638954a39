//! Tenants of an engine: a namespace of the region for each, with its limits.

use crate::cold::ColdTier;
use crate::region::record_of;
use crate::{NamespaceSpec, Readable};
use cenote_base::engine::Tenant;
use cenote_base::{Clock, NamespaceId, TenantKey};
use cenote_mem::Fabric;
use cenote_pool::{Namespace, Pool, PoolError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// All tenants are set within this time, and the operation of one tenant that is under way then. It is shorter
/// than a front's patience with its workers, so that the front learns which tenants are missing.
const SET_TIMEOUT: Duration = Duration::from_secs(20);

/// The parts of a store that tenants have. Any thread may change them.
pub trait Tenants: Send + Sync {
    /// Replaces the tenants: see [`Engine::set_tenants`](cenote_base::Engine::set_tenants).
    fn set(&self, tenants: &[Tenant]) -> Vec<String>;
}

/// Tenants in a region. Clones have one table.
pub(crate) struct RegionTenants<F: Fabric> {
    pool: Pool<F>,
    /// The engine's own namespace.
    spec: NamespaceSpec,
    table: Arc<Mutex<Table>>,
    /// Held while the tenants are replaced: a front that has given up may send others meanwhile.
    setting: Arc<Mutex<()>>,
    clock: Clock,
}

/// Is called with each namespace that is opened.
type Opened = Arc<dyn Fn(&NamespaceSpec) + Send + Sync>;

#[derive(Default)]
struct Table {
    open: BTreeMap<TenantKey, Namespace>,
    /// L4 that gets their blocks.
    cold: Option<(Arc<ColdTier>, Readable)>,
    opened: Option<Opened>,
}

impl<F: Fabric> Clone for RegionTenants<F> {
    fn clone(&self) -> Self {
        let (table, setting) = (Arc::clone(&self.table), Arc::clone(&self.setting));
        Self { pool: self.pool.clone(), spec: self.spec.clone(), table, setting, clock: self.clock }
    }
}

impl<F: Fabric> RegionTenants<F> {
    pub fn new(pool: Pool<F>, spec: NamespaceSpec, clock: Clock) -> Self {
        Self { pool, spec, table: Arc::default(), setting: Arc::default(), clock }
    }

    pub const fn spec(&self) -> &NamespaceSpec {
        &self.spec
    }

    /// Blocks of all tenants go to this tier, too, and come back from it if they are readable.
    pub fn open_in(&self, cold: Arc<ColdTier>, readable: Readable) {
        self.table().cold = Some((cold, readable));
    }

    /// Calls this with each namespace that is opened.
    pub fn tell(&self, opened: Opened) {
        self.table().opened = Some(opened);
    }

    /// The namespace of a tenant.
    pub fn get(&self, key: &TenantKey) -> Option<Namespace> {
        self.table().open.get(key).cloned()
    }

    /// Held for a few instructions, never while the region is asked: the engine's thread takes it.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, tenant: &Tenant) -> Result<Namespace, PoolError> {
        if let Some(open) = self.get(&tenant.key) {
            return Ok(open);
        }
        let spec = self.spec.of_tenant(tenant.key, &tenant.name);
        let namespace = self.pool.namespace(&record_of(&spec))?;
        let (cold, opened) = {
            let mut table = self.table();
            table.open.insert(tenant.key, namespace.clone());
            (table.cold.clone(), table.opened.clone())
        };
        if let Some((cold, readable)) = cold {
            cold.open_for(&namespace, readable);
        }
        if let Some(opened) = opened {
            opened(&spec);
        }
        Ok(namespace)
    }

    fn limit(&self, tenant: &Tenant) -> Result<(), PoolError> {
        self.limit_row(self.open(tenant)?.id, tenant.quota_bytes, tenant.kept_bytes)
    }

    fn limit_row(&self, row: NamespaceId, quota_bytes: u64, kept_bytes: u64) -> Result<(), PoolError> {
        self.pool.set_quota(row, quota_bytes)?;
        let keeps = || self.pool.namespaces().iter().any(|info| info.id == row && info.kept_bytes > 0);
        // A region of the plain design keeps nothing, and refuses to.
        if kept_bytes > 0 || keeps() { self.pool.keep(row, kept_bytes) } else { Ok(()) }
    }
}

impl<F: Fabric> Tenants for RegionTenants<F> {
    fn set(&self, tenants: &[Tenant]) -> Vec<String> {
        let _one_at_a_time = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<Namespace> = {
            let mut table = self.table();
            let known = |key: &TenantKey| tenants.iter().any(|tenant| tenant.key == *key);
            let gone =
                table.open.iter().filter(|(key, _)| !known(key)).map(|(_, namespace)| namespace.clone()).collect();
            table.open.retain(|key, _| known(key));
            gone
        };
        // A lock of the region has a deadline, and a file has 255 tenants.
        let end = self.clock.after(SET_TIMEOUT);
        let in_time = |set: &dyn Fn() -> Result<(), PoolError>| {
            if end.passed() {
                return Err(format!("the region took longer than {} s; read the file again", SET_TIMEOUT.as_secs()));
            }
            set().map_err(|error| error.to_string())
        };
        let mut troubles = Vec::new();
        for namespace in gone {
            if let Err(error) = in_time(&|| self.limit_row(namespace.id, 0, 0)) {
                troubles.push(format!("the limits of a removed tenant stay, row {}: {error}", namespace.id.0));
            }
        }
        // The region bounds the sum of kept bytes. One that shrinks makes room for another that grows, in
        // any order: so those that fail are tried again.
        let limit = |tenant: &Tenant| in_time(&|| self.limit(tenant));
        let failed: Vec<&Tenant> = tenants.iter().filter(|tenant| limit(tenant).is_err()).collect();
        let again = failed.into_iter().filter_map(|tenant| Some((tenant, limit(tenant).err()?)));
        troubles.extend(again.map(|(tenant, error)| format!("tenant `{}`: {error}", tenant.name)));
        troubles
    }
}
