#include "textflag.h"

// The kernels look for the first mark of p[0:n]; n is a positive multiple of
// 64, and gfdReach bytes before p can be read. They start 64 bytes early, with
// a block whose digests are right from its middle on, where the lag reaches to.
//
// In both, BX is the offset in p; a bit of R8-R11 says that the digest of one
// position is K, and after LAG that the one gfdLag before it is K too; R12 is
// the word of digests of the block before; R15 is the last word of marks.

// LAG keeps the bits of Z whose position gfdLag = 31 before has its bit in the
// concatenation of PREV and Z.
#define LAG(PREV, Z) \
	MOVQ Z, R13     \
	SHLQ $31, R13   \
	MOVQ PREV, R14  \
	SHRQ $33, R14   \
	ORQ  R14, R13   \
	ANDQ R13, Z

// FIRST leaves in R13 the bits of Z that begin a run, and jumps to found with
// the block's offset in DI if there are any.
#define FIRST(Z, OFF, found) \
	SHRQ  $63, R15         \
	LEAQ  (R15)(Z*2), R13  \
	MOVQ  Z, R15           \
	ANDNQ Z, R13, R13      \
	LEAQ  OFF(BX), DI      \
	TESTQ R13, R13         \
	JNZ   found

// MARK returns the position of the lowest bit of R13.
#define MARK \
	TZCNTQ R13, R13       \
	ADDQ   R13, DI        \
	MOVQ   DI, ret+24(FP) \
	VZEROUPPER            \
	RET

// DIGEST512 compares the digests of the 64 bytes at OFF. PD4, PD8 and PD16 are
// the digests of 4, 8 and 16 bytes of the block before; D4, D8 and D16 become
// those of this one.
#define DIGEST512(OFF, PD4, PD8, PD16, D4, D8, D16, Z) \
	VMOVDQU64       OFF(SI)(BX*1), Z0     \
	VMOVDQU64       (OFF-1)(SI)(BX*1), Z1 \
	VMOVDQU64       (OFF-2)(SI)(BX*1), Z2 \
	VMOVDQU64       (OFF-3)(SI)(BX*1), D4 \
	VGF2P8AFFINEQB  $0, Z20, Z0, Z0       \
	VGF2P8AFFINEQB  $0, Z21, Z1, Z1       \
	VGF2P8AFFINEQB  $0, Z22, Z2, Z2       \
	VGF2P8AFFINEQB  $0, Z23, D4, D4       \
	VPTERNLOGQ      $0x96, Z2, Z1, Z0     \
	VPXORQ          Z0, D4, D4            \
	VALIGND         $15, PD4, D4, Z4      \
	VGF2P8AFFINEQB  $0, Z24, Z4, Z4       \
	VPXORQ          Z4, D4, D8            \
	VALIGND         $14, PD8, D8, Z5      \
	VGF2P8AFFINEQB  $0, Z25, Z5, Z5       \
	VPXORQ          Z5, D8, D16           \
	VALIGND         $12, PD16, D16, Z6    \
	VGF2P8AFFINEQB  $0, Z26, Z6, Z6       \
	VPTERNLOGQ      $0x96, Z27, D16, Z6   \
	VPTESTNMB       Z28, Z6, K1           \
	KMOVQ           K1, Z

// func gfdFirstAVX512(p *byte, n int, k *gfdKey) int
TEXT ·gfdFirstAVX512(SB), NOSPLIT, $0-32
	MOVQ         p+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVQ         k+16(FP), DX
	VPBROADCASTQ 0(DX), Z20
	VPBROADCASTQ 8(DX), Z21
	VPBROADCASTQ 16(DX), Z22
	VPBROADCASTQ 24(DX), Z23
	VPBROADCASTQ 32(DX), Z24
	VPBROADCASTQ 40(DX), Z25
	VPBROADCASTQ 48(DX), Z26
	VPBROADCASTQ 56(DX), Z27
	VPBROADCASTQ 64(DX), Z28
	MOVQ         72(DX), AX
	ADDQ         SI, AX
	XORQ         BX, BX
	VPXORQ       Z10, Z10, Z10
	VPXORQ       Z12, Z12, Z12
	VPXORQ       Z14, Z14, Z14
	DIGEST512(-64, Z10, Z12, Z14, Z16, Z17, Z18, R12)
	VMOVDQA64    Z16, Z10
	VMOVDQA64    Z17, Z12
	VMOVDQA64    Z18, Z14
	MOVQ         R12, R15
	SHLQ         $31, R15
	ANDQ         R12, R15
	SUBQ         $256, CX
	JLT          rest

loop:
	PREFETCHT0 (AX)(BX*1)
	PREFETCHT0 64(AX)(BX*1)
	PREFETCHT0 128(AX)(BX*1)
	PREFETCHT0 192(AX)(BX*1)
	DIGEST512(0, Z10, Z12, Z14, Z11, Z13, Z15, R8)
	DIGEST512(64, Z11, Z13, Z15, Z10, Z12, Z14, R9)
	DIGEST512(128, Z10, Z12, Z14, Z11, Z13, Z15, R10)
	DIGEST512(192, Z11, Z13, Z15, Z10, Z12, Z14, R11)
	MOVQ R11, DI
	LAG(R10, R11)
	LAG(R9, R10)
	LAG(R8, R9)
	LAG(R12, R8)
	MOVQ DI, R12
	MOVQ R8, R13
	MOVQ R9, R14
	ORQ  R10, R13
	ORQ  R11, R14
	ORQ  R14, R13
	JNZ  hit
	XORQ R15, R15

next:
	ADDQ $256, BX
	CMPQ BX, CX
	JLE  loop

rest:
	ADDQ $256, CX

last:
	CMPQ BX, CX
	JGE  none
	DIGEST512(0, Z10, Z12, Z14, Z16, Z17, Z18, R8)
	VMOVDQA64 Z16, Z10
	VMOVDQA64 Z17, Z12
	VMOVDQA64 Z18, Z14
	MOVQ R8, DI
	LAG(R12, R8)
	MOVQ DI, R12
	FIRST(R8, 0, found)
	ADDQ $64, BX
	JMP  last

none:
	MOVQ $-1, ret+24(FP)
	VZEROUPPER
	RET

hit:
	FIRST(R8, 0, found)
	FIRST(R9, 64, found)
	FIRST(R10, 128, found)
	FIRST(R11, 192, found)
	JMP next

found:
	MARK

DATA three<>+0(SB)/8, $0x0303030303030303
DATA three<>+8(SB)/8, $0x0303030303030303
DATA three<>+16(SB)/8, $0x0303030303030303
DATA three<>+24(SB)/8, $0x0303030303030303
GLOBL three<>(SB), RODATA|NOPTR, $32

DATA low<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f
GLOBL low<>(SB), RODATA|NOPTR, $8

// TABLE puts into LO and HI what the matrix with the tables TL and TH makes of
// the 32 bytes at OFF: the part of the low and that of the high half-bytes.
#define TABLE(OFF, TL, TH, LO, HI) \
	VMOVDQU OFF(SI)(BX*1), LO \
	VPSRLW  $4, LO, HI        \
	VPAND   Y4, LO, LO        \
	VPAND   Y4, HI, HI        \
	VPSHUFB LO, TL, LO        \
	VPSHUFB HI, TH, HI

// DIGEST256 compares the digests of the 32 bytes at OFF. Y5, Y14 and Y15 hold
// the digests of 4, 8 and 16 bytes, before and after.
#define DIGEST256(OFF, Z) \
	TABLE(OFF, Y6, Y7, Y0, Y3)        \
	TABLE((OFF-1), Y8, Y9, Y1, Y2)    \
	VPXOR      Y1, Y0, Y0             \
	VPXOR      Y2, Y3, Y3             \
	TABLE((OFF-2), Y10, Y11, Y1, Y2)  \
	VPXOR      Y1, Y0, Y0             \
	VPXOR      Y2, Y3, Y3             \
	TABLE((OFF-3), Y12, Y13, Y1, Y2)  \
	VPXOR      Y1, Y0, Y0             \
	VPXOR      Y2, Y3, Y3             \
	VPXOR      Y3, Y0, Y0             \
	VPERM2I128 $0x03, Y5, Y0, Y1      \
	VMOVDQA    Y0, Y5                 \
	VPALIGNR   $12, Y1, Y0, Y1        \
	VPAND      Y4, Y1, Y2             \
	VPXOR      Y2, Y1, Y1             \
	VPSLLW     $4, Y2, Y2             \
	VPSRLW     $4, Y1, Y1             \
	VPXOR      Y2, Y0, Y0             \
	VPXOR      Y1, Y0, Y0             \
	VPERM2I128 $0x03, Y14, Y0, Y1     \
	VMOVDQA    Y0, Y14                \
	VPALIGNR   $8, Y1, Y0, Y1         \
	VPXOR      Y3, Y3, Y3             \
	VPADDB     Y1, Y1, Y2             \
	VPCMPGTB   Y1, Y3, Y1             \
	VPSUBB     Y1, Y2, Y2             \
	VPXOR      Y2, Y0, Y0             \
	VPERM2I128 $0x03, Y15, Y0, Y1     \
	VMOVDQA    Y0, Y15                \
	VPADDB     Y1, Y1, Y2             \
	VPADDB     Y2, Y2, Y2             \
	VPSRLW     $6, Y1, Y1             \
	VPAND      three<>(SB), Y1, Y1    \
	VPXOR      Y2, Y0, Y0             \
	VPXOR      Y1, Y0, Y0             \
	VPAND      256(DX), Y0, Y0        \
	VPCMPEQB   288(DX), Y0, Y0        \
	VPMOVMSKB  Y0, Z

// func gfdFirstAVX2(p *byte, n int, k *gfdKey) int
TEXT ·gfdFirstAVX2(SB), NOSPLIT, $0-32
	MOVQ           p+0(FP), SI
	MOVQ           n+8(FP), CX
	MOVQ           k+16(FP), DX
	VBROADCASTI128 128(DX), Y6
	VBROADCASTI128 144(DX), Y7
	VBROADCASTI128 160(DX), Y8
	VBROADCASTI128 176(DX), Y9
	VBROADCASTI128 192(DX), Y10
	VBROADCASTI128 208(DX), Y11
	VBROADCASTI128 224(DX), Y12
	VBROADCASTI128 240(DX), Y13
	VPBROADCASTQ   low<>(SB), Y4
	VPXOR          Y5, Y5, Y5
	VPXOR          Y14, Y14, Y14
	VPXOR          Y15, Y15, Y15
	MOVQ           $-64, BX
	DIGEST256(0, R8)
	DIGEST256(32, R12)
	SHLQ           $32, R12
	ORQ            R8, R12
	MOVQ           R12, R15
	SHLQ           $31, R15
	ANDQ           R12, R15
	XORQ           BX, BX

loop:
	DIGEST256(0, R8)
	DIGEST256(32, R9)
	SHLQ $32, R9
	ORQ  R9, R8
	MOVQ R8, DI
	LAG(R12, R8)
	MOVQ DI, R12
	FIRST(R8, 0, found)
	ADDQ $64, BX
	CMPQ BX, CX
	JLT  loop
	MOVQ $-1, ret+24(FP)
	VZEROUPPER
	RET

found:
	MARK
