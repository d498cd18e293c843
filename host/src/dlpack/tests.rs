use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Counts how often it is dropped, and keeps the elements alive.
struct Owner {
    drops: Arc<AtomicUsize>,
    elements: Vec<f32>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

fn owner(drops: &Arc<AtomicUsize>) -> (Owner, Layout) {
    let elements: Vec<f32> = (0..2 * 3 * 2 * 4).map(|x| x as f32).collect();
    let layout = Layout {
        address: elements.as_ptr() as u64,
        device: Device::Cpu,
        dtype: DType::F32,
        shape: [2, 3, 2, 4],
        strides: Strides::bhsd(3, 2, 4),
    };
    (Owner { drops: drops.clone(), elements }, layout)
}

/// A tensor whose arrays live here and whose deleter does nothing.
struct Foreign {
    shape: Vec<i64>,
    strides: Vec<i64>,
    managed: ManagedTensor,
}

impl Foreign {
    fn new(shape: &[i64], strides: Option<&[i64]>) -> Box<Self> {
        let mut foreign = Box::new(Foreign {
            shape: shape.to_vec(),
            strides: strides.unwrap_or_default().to_vec(),
            managed: ManagedTensor { tensor: unfilled(), manager: std::ptr::null_mut(), deleter: None },
        });
        foreign.managed.tensor.ndim = shape.len() as i32;
        foreign.managed.tensor.data = 4096 as *mut c_void;
        foreign.managed.tensor.shape = foreign.shape.as_mut_ptr();
        if strides.is_some() {
            foreign.managed.tensor.strides = foreign.strides.as_mut_ptr();
        }
        foreign
    }

    fn import(&mut self) -> Result<Layout> {
        // SAFETY: the arrays are ours and long enough; there is no deleter.
        unsafe { Imported::from_raw(NonNull::from(&mut self.managed)) }.map(|tensor| *tensor.layout())
    }

    fn error(&mut self) -> String {
        self.import().unwrap_err().to_string()
    }
}

#[test]
fn the_structures_are_laid_out_as_in_the_header() {
    assert_eq!(size_of::<RawTensor>(), 48);
    assert_eq!(offset_of!(RawTensor, ndim), 16);
    assert_eq!(offset_of!(RawTensor, dtype), 20);
    assert_eq!(offset_of!(RawTensor, shape), 24);
    assert_eq!(offset_of!(RawTensor, byte_offset), 40);
    assert_eq!((size_of::<ManagedTensor>(), offset_of!(ManagedTensor, deleter)), (64, 56));
    assert_eq!(size_of::<ManagedTensorVersioned>(), 80);
    assert_eq!(offset_of!(ManagedTensorVersioned, deleter), 16);
    assert_eq!(offset_of!(ManagedTensorVersioned, tensor), 32);
}

#[test]
fn out_and_in_again_frees_the_owner_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (owned, layout) = owner(&drops);
    let elements = owned.elements.clone();
    // SAFETY: just exported, taken once.
    let tensor = unsafe { Imported::from_raw(export(&layout, owned)) }.unwrap();
    assert_eq!((tensor.layout(), tensor.is_read_only()), (&layout, false));
    // SAFETY: the exported owner keeps the elements alive.
    let seen = unsafe { std::slice::from_raw_parts(tensor.layout().address as *const f32, elements.len()) };
    assert_eq!(seen, elements);
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    std::thread::spawn(move || drop(tensor)).join().unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn versioned_out_and_in_again() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (owned, layout) = owner(&drops);
    let layout = Layout { device: Device::Cuda(3), dtype: DType::Bf16, ..layout };
    // SAFETY: just exported, taken once.
    let tensor = unsafe { Imported::from_raw_versioned(export_versioned(&layout, true, owned)) }.unwrap();
    assert_eq!((tensor.layout(), tensor.is_read_only()), (&layout, true));
    drop(tensor);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn a_refused_tensor_stays_the_callers() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (owned, layout) = owner(&drops);
    let managed = export_versioned(&layout, false, owned);
    // SAFETY: exported above; nobody has taken it, and the deleter runs once, below.
    unsafe {
        (*managed.as_ptr()).version = Version { major: 2, minor: 1 };
        let error = Imported::from_raw_versioned(managed).unwrap_err().to_string();
        assert_eq!(error, "dlpack version is 2.1, but must be 1.x; export with max_version=(1, 0)");
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        (*managed.as_ptr()).deleter.unwrap()(managed.as_ptr());
    }
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn no_strides_mean_compact_and_three_dimensions_one_sequence() {
    let layout = Foreign::new(&[2, 5, 3, 8], None).import().unwrap();
    assert_eq!((layout.shape, layout.strides), ([2, 5, 3, 8], Strides::bshd(5, 3, 8)));
    let layout = Foreign::new(&[5, 3, 8], Some(&[100, 10, 1])).import().unwrap();
    assert_eq!(layout.shape, [1, 5, 3, 8]);
    assert_eq!((layout.strides.seq, layout.strides.head), (100, 10));
}

#[test]
fn strides_without_a_neighbour_do_not_count() {
    let layout = Foreign::new(&[1, 5, 3, 1], Some(&[-7, 3, 1, 99])).import().unwrap();
    assert_eq!(layout.strides, Strides { batch: 15, seq: 3, head: 1 });
    let layout = Foreign::new(&[4, 5, 3, 8], Some(&[0, 24, 8, 1])).import().unwrap();
    assert_eq!(layout.strides.batch, 0, "a broadcast");
}

#[test]
fn the_offset_counts_in_bytes() {
    let mut foreign = Foreign::new(&[1, 5, 3, 8], None);
    foreign.managed.tensor.byte_offset = 64;
    assert_eq!(foreign.import().unwrap().address, 4096 + 64);
    foreign.managed.tensor.byte_offset = 2;
    assert_eq!(
        foreign.error(),
        "data is 0x1002, but must be a multiple of 4, the size of f32; copy the tensor"
    );
}

#[test]
fn what_attention_cannot_use_is_named() {
    let change = |edit: fn(&mut RawTensor)| {
        let mut foreign = Foreign::new(&[1, 5, 3, 8], None);
        edit(&mut foreign.managed.tensor);
        foreign.error()
    };
    let dtype = change(|tensor| tensor.dtype = RawDType { code: 2, bits: 64, lanes: 1 });
    assert!(
        dtype.starts_with("dtype is (code 2, 64 bits, 1 lanes), but must be float16, bfloat16 or float32")
    );
    let lanes = change(|tensor| tensor.dtype.lanes = 4);
    assert!(lanes.starts_with("dtype is (code 2, 32 bits, 4 lanes)"), "{lanes}");
    let device = change(|tensor| tensor.device = RawDevice { device_type: 10, device_id: 0 });
    assert!(
        device.starts_with("device is (type 10, id 0), but must be the CPU or a CUDA device"),
        "{device}"
    );
    let ndim = change(|tensor| tensor.ndim = 2);
    assert!(ndim.starts_with("ndim is 2, but must be 4"), "{ndim}");
    for ndim in [-1, 0, 5, i32::MIN, i32::MAX] {
        let mut foreign = Foreign::new(&[1, 5, 3, 8], None);
        foreign.managed.tensor.ndim = ndim;
        assert!(foreign.error().starts_with(&format!("ndim is {ndim}, but must be 4")));
    }
    let no_shape = change(|tensor| tensor.shape = std::ptr::null_mut());
    assert_eq!(no_shape, "shape is NULL, but must point to the sizes; check the exporter");
    let gpu = change(|tensor| tensor.device = RawDevice { device_type: CUDA, device_id: -1 });
    assert!(gpu.starts_with("device is (type 2, id -1)"), "{gpu}");
    for (shape, strides) in [
        (&[1 << 40, 1 << 20, 3, 8], None),
        (&[2, 5, 3, 8], Some(&[i64::MAX, 24, 8, 1])),
        (&[i64::MAX, 5, 3, 8], Some(&[120, 24, 8, 1])),
    ] as [(&[i64], Option<&[i64]>); 3]
    {
        let huge = Foreign::new(shape, strides).error();
        assert!(huge.starts_with(&format!("shape is [{}, ", shape[0])), "{huge}");
        assert!(huge.ends_with("but must fit in memory; check the exporter"), "{huge}");
    }
    let mut wrapping = Foreign::new(&[1, 5, 3, 8], None);
    wrapping.managed.tensor.byte_offset = (-4096i64 - 64) as u64;
    assert!(wrapping.error().ends_with("but must fit in memory; check the exporter"));
    // Around the end of all addresses, to 0.
    wrapping.managed.tensor.data = std::ptr::without_provenance_mut(64);
    wrapping.managed.tensor.byte_offset = -64i64 as u64;
    assert!(wrapping.error().ends_with("but must stay in memory; check the exporter"));
    let data = change(|tensor| {
        tensor.data = std::ptr::null_mut();
        tensor.byte_offset = 64;
    });
    assert_eq!(data, "data is NULL, but must point to the elements; check the exporter");
    let negative = Foreign::new(&[2, 5, 3, 8], Some(&[-120, 24, 8, 1])).error();
    assert!(negative.starts_with("stride is -120, but must not be negative"), "{negative}");
    let gaps = Foreign::new(&[2, 5, 3, 8], Some(&[240, 48, 16, 2])).error();
    assert!(gaps.starts_with("stride of the last dimension is 2, but must be 1"), "{gaps}");
    let shape = Foreign::new(&[-1, 5, 3, 8], None).error();
    assert!(shape.starts_with("shape is -1, but must not be negative"), "{shape}");
    let mut empty = Foreign::new(&[0, 5, 3, 8], None);
    empty.managed.tensor.data = std::ptr::null_mut();
    assert_eq!(empty.import().unwrap().address, 0, "an empty tensor has no address");
}

#[test]
fn views_reach_as_far_as_the_strides() {
    let mut elements: Vec<f32> = (0..48).map(|x| x as f32).collect();
    let mut foreign = Foreign::new(&[2, 3, 2, 2], Some(&[24, 8, 4, 1]));
    foreign.managed.tensor.data = elements.as_mut_ptr().cast();
    // SAFETY: the elements outlive the import, and reach as far as the strides do; there is no deleter.
    let mut tensor = unsafe { Imported::from_raw(NonNull::from(&mut foreign.managed)) }.unwrap();
    let view = tensor.view::<f32>().unwrap();
    assert_eq!((view.shape(), view.device()), ([2, 3, 2, 2], Some(Device::Cpu)));
    let Memory::Host(seen) = view.memory else { panic!("the CPU's memory") };
    assert_eq!(seen, &elements[..24 + 2 * 8 + 4 + 2]);
    assert_eq!(tensor.view_mut::<f32>().unwrap().shape(), [2, 3, 2, 2]);
    let error = tensor.view::<half::f16>().err().unwrap().to_string();
    assert_eq!(error, "dtype is f32, but the view is of f16; ask for the tensor's own type");
}

#[test]
fn a_read_only_tensor_is_no_output() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (owned, layout) = owner(&drops);
    // SAFETY: just exported, taken once.
    let mut tensor = unsafe { Imported::from_raw_versioned(export_versioned(&layout, true, owned)) }.unwrap();
    assert!(tensor.view::<f32>().is_ok());
    let error = tensor.view_mut::<f32>().err().unwrap().to_string();
    assert_eq!(error, "output is read-only, but must be writable; export a copy of the tensor");
}

#[test]
fn a_tensor_of_ours_goes_out_and_comes_back() {
    let ours = tensor::Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0, 3.0, 4.0], [1, 2, 1, 2]).unwrap();
    let layout = Layout::from(&ours);
    assert_eq!(
        (layout.dtype, layout.shape, layout.strides),
        (DType::F32, [1, 2, 1, 2], Strides::bshd(2, 1, 2))
    );
    // SAFETY: just exported, taken once.
    let back = unsafe { Imported::from_raw(export(&layout, ours)) }.unwrap();
    let Memory::Host(seen) = back.view::<f32>().unwrap().memory else { panic!("the CPU's memory") };
    assert_eq!(seen, [1.0, 2.0, 3.0, 4.0]);
}
