//! Memory fences.

macro_rules! fence {
    ($(#[doc = $doc:literal] $name:ident $ptx:literal => $host:expr;)*) => {$(
        #[doc = $doc]
        #[inline(always)]
        pub fn $name() {
            device!({ unsafe { core::arch::asm!($ptx, options(nostack)) } }
                else { host!(concat!("fence::", stringify!($name)), () => $host) })
        }
    )*};
}

fence! {
    /// Orders this thread's accesses for all threads of the GPU (`fence.acq_rel.gpu`).
    thread_fence "fence.acq_rel.gpu;" => crate::sim::thread_fence();
    /// Makes this thread's shared-memory writes visible to TMA and wgmma (`fence.proxy.async.shared::cta`).
    proxy_async_shared "fence.proxy.async.shared::cta;" => crate::sim::fence_proxy_async();
    /// Makes this thread's `mbarrier.init`s visible to the cluster and to TMA (`fence.mbarrier_init`).
    mbarrier_init "fence.mbarrier_init.release.cluster;" => crate::sim::fence_mbarrier_init();
}
