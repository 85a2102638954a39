//! Limits of namespaces that are for all hosts.

use crate::oracle::Checker;
use crate::scenario::{Actor, SimPool, UNLIKE};
use cenote_pool::{Design, Publish};

impl Actor {
    /// A limit that one host sets is heeded by all, once they have ticked.
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
            let fact = "a block was published over a limit that another host had set";
            self.oracle.report_unless_lossy(Checker::Allocator, fact);
        }
        self.meet(42, false, pool);
    }

    /// What one host uses of a limit is not there for the others, whatever they saw of it before.
    pub fn share_a_limit(&self, pool: &SimPool) {
        if self.shape.design == Design::Plain {
            // It cannot take back what is published here.
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
        // Everybody has seen that nobody uses any of it.
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
        // Who publishes does not wait for what he asks: he may go by what he last saw, once.
        if let (true, true, Some(namespace)) = (is_used && is_limited, self.process.host() > 0, &namespace)
            && [0, self.shape.hosts].map(|more| self.publish(pool, namespace, number + more))[1] == Publish::Published
        {
            let fact = "a block was published over a limit that another host had used up";
            self.oracle.report_unless_lossy(Checker::Allocator, fact);
        }
        self.meet(47, false, pool);
        if let Some(namespace) = &namespace {
            pool.forget(namespace);
        }
        self.meet(48, false, pool);
    }
}
