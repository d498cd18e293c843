//! The `#[kernel]` attribute of `cuda_std`.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{FnArg, ItemFn, LitInt, Token, parse_macro_input};

/// Launch bounds of a kernel, as the attribute's arguments give them.
#[derive(Default)]
struct Bounds {
    threads: Option<u32>,
    min_blocks: Option<u32>,
    cluster: Option<u32>,
}

impl Parse for Bounds {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut bounds = Bounds::default();
        while !input.is_empty() {
            let name: syn::Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let value: u32 = input.parse::<LitInt>()?.base10_parse()?;
            match name.to_string().as_str() {
                "threads" => bounds.threads = Some(value),
                "min_blocks" => bounds.min_blocks = Some(value),
                "cluster" => bounds.cluster = Some(value),
                _ => return Err(syn::Error::new(name.span(), "expected threads, min_blocks or cluster")),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(bounds)
    }
}

/// Makes a function the entry of a kernel.
///
/// `#[kernel(threads = 384, min_blocks = 1, cluster = 2)]`: all three optional. On the device the function becomes
/// `extern "ptx-kernel"` under its own name, and its launch bounds travel in the PTX as a comment
/// `//@kernel NAME maxntid=… minnctapersm=… cluster=…`, from which the builder makes the directives that Rust cannot
/// write. On the host it stays a plain function for the simulated device.
///
/// A second argument of the type `ParamAddress` is no parameter of the kernel: it receives the address of the first.
#[proc_macro_attribute]
pub fn kernel(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let bounds = parse_macro_input!(arguments as Bounds);
    let function = parse_macro_input!(item as ItemFn);
    expand(&bounds, function).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn expand(bounds: &Bounds, function: ItemFn) -> syn::Result<Tokens> {
    let ItemFn { attrs, vis, sig, block } = &function;
    if sig.unsafety.is_none() {
        return Err(syn::Error::new_spanned(
            sig,
            "a kernel is `unsafe fn`: its caller answers for the launch",
        ));
    }
    if !sig.generics.params.is_empty() {
        return Err(syn::Error::new_spanned(
            &sig.generics,
            "a kernel entry has no generics: give it its own name",
        ));
    }
    let name = &sig.ident;
    let inputs: Vec<&FnArg> = sig.inputs.iter().collect();
    let address = inputs.get(1).and_then(|argument| match argument {
        FnArg::Typed(typed) if is_param_address(&typed.ty) => Some(&typed.pat),
        _ => None,
    });
    let parameters = if address.is_some() { &inputs[..1] } else { &inputs[..] };
    let bind_address = address.map(|pattern| {
        let text = format!("mov.b64 {{0}}, {name}_param_0; cvta.param.u64 {{0}}, {{0}};");
        quote! {
            let #pattern = {
                let address: u64;
                unsafe { ::core::arch::asm!(#text, out(reg64) address, options(pure, nomem, nostack)) };
                ::cuda_std::tma::ParamAddress(address)
            };
        }
    });
    let mut note = format!("//@kernel {name}");
    for (key, value) in
        [("maxntid", bounds.threads), ("minnctapersm", bounds.min_blocks), ("cluster", bounds.cluster)]
    {
        if let Some(value) = value {
            note += &format!(" {key}={value}");
        }
    }
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        ::core::arch::global_asm!(#note);
        #(#attrs)*
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #name(#(#parameters),*) {
            #bind_address
            #block
        }
        #(#attrs)*
        #[cfg(not(target_arch = "nvptx64"))]
        #vis #sig #block
    })
}

fn is_param_address(ty: &syn::Type) -> bool {
    matches!(ty, syn::Type::Path(path) if path.path.segments.last().is_some_and(|s| s.ident == "ParamAddress"))
}
