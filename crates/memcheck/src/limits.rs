//! Quotas of namespaces, which apply to all hosts together.

use crate::oracle::Checker;
use crate::scenario::{Actor, SimPool, UNLIKE};
use cenote_pool::{Design, Publish};

impl Actor {
    /// Checks that every host enforces a quota that host 0 set, once it has ticked.
    pub fn obey(&self, pool: &SimPool) {
        let label = "strictly";
        let namespace = self.named(pool, label);
        self.meet(40, false, pool);
        if self.process.host() == 0
            && let Some(namespace) = &namespace
        {
            let write = self.oracle.notes().begin_write(label, Some(1));
            if pool.set_quota(namespace.id, 1).is_ok() {
                self.oracle.notes().end_write(label, write);
            }
        }
        let from = self.oracle.notes().now();
        self.meet(41, false, pool);
        pool.tick();
        let is_limited = !self.oracle.notes().may_be(label, None, from, true);
        if let (true, Some(namespace)) = (is_limited, &namespace)
            && self.publish(pool, namespace, UNLIKE + self.process.host()) == Publish::Published
        {
            let fact = "a block was published over the quota that another host had set";
            self.oracle.report_unless_lossy(Checker::Allocator, fact);
        }
        self.meet(42, false, pool);
    }

    /// Checks that the use of a quota by one host leaves no room for the others, even if they read
    /// the older usage before.
    pub fn share_a_limit(&self, pool: &SimPool) {
        if self.shape.design == Design::Plain {
            // The plain design cannot remove the blocks that this check publishes.
            return;
        }
        let label = "jointly";
        let namespace = self.named(pool, label);
        let number = UNLIKE + self.shape.hosts + self.process.host();
        self.meet(43, false, pool);
        if self.process.host() == 0
            && let Some(namespace) = &namespace
        {
            let bytes = 2 * self.shape.block_bytes - 1;
            let write = self.oracle.notes().begin_write(label, Some(bytes));
            if pool.set_quota(namespace.id, bytes).is_ok() {
                self.oracle.notes().end_write(label, write);
            }
        }
        let from = self.oracle.notes().now();
        self.meet(44, false, pool);
        pool.tick();
        let is_limited = !self.oracle.notes().may_be(label, None, from, true);
        // Every host reads a usage of zero.
        let _ = pool.info();
        self.meet(45, false, pool);
        if self.process.host() == 0
            && let Some(namespace) = &namespace
        {
            let is_used = is_limited && self.publish(pool, namespace, number) == Publish::Published;
            self.oracle.notes().is_limit_used = is_used;
        }
        self.meet(46, false, pool);
        let is_used = self.oracle.notes().is_limit_used;
        // A publisher does not wait for the refresh that it starts, so one publish may rely on the
        // usage that it read before. The second must not.
        if let (true, true, Some(namespace)) = (is_used && is_limited, self.process.host() > 0, &namespace)
            && [0, self.shape.hosts].map(|more| self.publish(pool, namespace, number + more))[1] == Publish::Published
        {
            let fact = "a block was published over the quota that another host had used up";
            self.oracle.report_unless_lossy(Checker::Allocator, fact);
        }
        self.meet(47, false, pool);
        if let Some(namespace) = &namespace {
            pool.forget(namespace);
        }
        self.meet(48, false, pool);
    }
}
