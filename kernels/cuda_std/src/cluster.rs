//! Thread block clusters: blocks that run together and reach each other's shared memory.

/// Rank of this block in its cluster (`%cluster_ctarank`); 0 without a cluster.
#[inline(always)]
pub fn block_rank() -> u32 {
    device!({
        let rank: u32;
        unsafe { core::arch::asm!("mov.u32 {}, %cluster_ctarank;", out(reg32) rank, options(pure, nomem, nostack)) };
        rank
    } else { host!("cluster::block_rank", () => crate::sim::index::block_rank()) })
}

/// Waits for all threads of the cluster and orders their shared accesses (`barrier.cluster.arrive` and `wait`).
#[inline(always)]
pub fn sync() {
    device!({ unsafe { core::arch::asm!("barrier.cluster.arrive.release.aligned;", "barrier.cluster.wait.acquire.aligned;", options(nostack)) } }
        else { host!("cluster::sync", () => crate::sim::cluster_sync()) })
}
