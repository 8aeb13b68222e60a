// Names of the number types. A kernel source has no include: the build puts this file, primitives.cuh and numeric.cuh in
// front of it. No type whose size depends on the operating system: i64 is `long long` everywhere.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Elements of tensors in half precision and of FP8 caches: bits, converted by to_float and from_float (numeric.cuh).
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct e4m3 {
  u8 bits;
};

// Sixteen bytes, the widest access of one thread.
struct alignas(16) Vec16 {
  u32 words[4];
};

template <class A, class B>
struct SameType {
  static constexpr bool value = false;
};
template <class A>
struct SameType<A, A> {
  static constexpr bool value = true;
};
template <class A, class B>
constexpr bool same_type = SameType<A, B>::value;
