//! Each modifier of the contract alone, and all of them together, in every type: random calls mix them, and a fault of
//! one may then hide behind another.

use super::edges::wish;
use super::*;

/// No modifier at all.
fn bare() -> Wish {
    Wish { causal: Causal::No, window: (None, None), alibi: false, ..wish() }
}

fn right_in_every_type(wish: Wish) {
    Case::<f32>::new(&wish).assert_right();
    Case::<f16>::new(&wish).assert_right();
    Case::<bf16>::new(&wish).assert_right();
}

/// Which dimensions of a bias or a mask are whole: all, none, and each one left at 1.
const SHAPES: [[bool; 4]; 6] = [
    [true; 4],
    [false; 4],
    [false, true, true, true],
    [true, false, true, true],
    [true, true, false, true],
    [true, true, true, false],
];

#[test]
fn no_modifier() {
    right_in_every_type(bare());
}

#[test]
fn a_bias_in_f32() {
    for shape in SHAPES {
        right_in_every_type(Wish { bias: Some(shape), ..bare() });
    }
}

#[test]
fn a_bias_in_the_type_of_q() {
    for shape in SHAPES {
        right_in_every_type(Wish { bias: Some(shape), own_bias: true, ..bare() });
    }
}

#[test]
fn a_mask_tensor() {
    for shape in SHAPES {
        right_in_every_type(Wish { mask: Some(shape), ..bare() });
    }
}

#[test]
fn softcap() {
    for cap in [0.5, 3.0, 50.0] {
        right_in_every_type(Wish { softcap: Some(cap), ..bare() });
    }
}

#[test]
fn alibi_with_both_diagonals() {
    for causal in [Causal::No, Causal::BottomRight, Causal::TopLeft] {
        right_in_every_type(Wish { alibi: true, causal, ..bare() });
    }
}

#[test]
fn a_sink() {
    right_in_every_type(Wish { sink: true, ..bare() });
}

#[test]
fn windows_and_causal_masks() {
    for causal in [Causal::No, Causal::BottomRight, Causal::TopLeft] {
        for window in
            [(None, None), (Some(20), None), (None, Some(20)), (Some(0), Some(0)), (Some(100), Some(7))]
        {
            right_in_every_type(Wish { causal, window, ..bare() });
        }
    }
}

#[test]
fn padded_and_packed_lengths() {
    for lengths in [1, 2] {
        right_in_every_type(Wish { lengths, batch: 3, ..bare() });
    }
}

#[test]
fn all_together() {
    for own_bias in [false, true] {
        right_in_every_type(Wish {
            softcap: Some(5.0),
            alibi: true,
            sink: true,
            bias: Some([true, true, false, true]),
            own_bias,
            mask: Some([true, false, true, true]),
            lengths: 1,
            ..wish()
        });
    }
}

/// A bias of `-inf` is a false mask, to the bit, whatever type it is in; the others are added before the maximum.
#[test]
fn a_bias_of_minus_infinity_is_a_mask() {
    fn same<T: Element>() {
        let mut case = Case::<T>::new(&Wish { mask: Some([true; 4]), ..bare() });
        let masked = case.run(InstructionSet::best());
        let mask = case.mask.take().expect("asked for above");
        let values = mask.mapv(|allowed| if allowed { 0.0 } else { f32::NEG_INFINITY });
        for dtype in [DType::F32, T::DTYPE] {
            case.bias = Some(OwnedBias::new(dtype, values.clone()));
            assert_eq!(
                case.run(InstructionSet::best()),
                masked,
                "{} beside {}",
                dtype.name(),
                T::DTYPE.name()
            );
        }
    }
    same::<f32>();
    same::<f16>();
    same::<bf16>();
}
