#include "textflag.h"

// TABLE puts into V what a matrix, by its tables TL and TH for the low and the
// high half of a byte, makes of the 16 bytes at OFF.
#define TABLE(OFF, F, V, TL, TH) \
	FMOVQ OFF(R0), F              \
	VUSHR $4, V.B16, V4.B16       \
	VAND  V24.B16, V.B16, V.B16   \
	VTBL  V.B16, [TL.B16], V.B16  \
	VTBL  V4.B16, [TH.B16], V4.B16 \
	VEOR  V4.B16, V.B16, V.B16

// DIGEST compares the digests of the 16 bytes at OFF, and leaves in OUT a bit of
// its place for each that is K. V28, V29 and V30 hold the digests of 4, 8 and 16
// bytes, before and after.
#define DIGEST(OFF, OUT) \
	TABLE(OFF, F0, V0, V16, V17)           \
	TABLE((OFF-1), F1, V1, V18, V19)       \
	TABLE((OFF-2), F2, V2, V20, V21)       \
	TABLE((OFF-3), F3, V3, V22, V23)       \
	VEOR  V1.B16, V0.B16, V0.B16           \
	VEOR  V3.B16, V2.B16, V2.B16           \
	VEOR  V2.B16, V0.B16, V0.B16           \
	VEXT  $12, V0.B16, V28.B16, V1.B16     \
	VMOV  V0.B16, V28.B16                  \
	VSHL  $4, V1.B16, V2.B16               \
	VSRI  $4, V1.B16, V2.B16               \
	VEOR  V2.B16, V0.B16, V0.B16           \
	VEXT  $8, V0.B16, V29.B16, V1.B16      \
	VMOV  V0.B16, V29.B16                  \
	VSHL  $1, V1.B16, V2.B16               \
	VSRI  $7, V1.B16, V2.B16               \
	VEOR  V2.B16, V0.B16, V0.B16           \
	VSHL  $2, V30.B16, V2.B16              \
	VSRI  $6, V30.B16, V2.B16              \
	VMOV  V0.B16, V30.B16                  \
	VEOR  V2.B16, V0.B16, V0.B16           \
	VAND  V25.B16, V0.B16, V0.B16          \
	VCMEQ V26.B16, V0.B16, V0.B16          \
	VAND  V27.B16, V0.B16, OUT.B16

// BLOCK sets the bits of R5 for the places of 64 whose digest is K.
#define BLOCK \
	DIGEST(0, V5)                     \
	DIGEST(16, V6)                    \
	DIGEST(32, V7)                    \
	DIGEST(48, V8)                    \
	VADDP V6.B16, V5.B16, V5.B16      \
	VADDP V8.B16, V7.B16, V7.B16      \
	VADDP V7.B16, V5.B16, V5.B16      \
	VADDP V5.B16, V5.B16, V5.B16      \
	VMOV  V5.D[0], R5

// func gfdFirstNEON(p *byte, n int, k *gfdKey) int
//
// The first mark of p[0:n]; n is a positive multiple of 64, and gfdReach bytes
// before p can be read. It starts 64 bytes early, with a block whose digests are
// right from its middle on, where the lag reaches to. R8 is the offset in p, R6
// the word of digests of the block before, R7 the last word of marks.
TEXT ·gfdFirstNEON(SB), NOSPLIT, $0-32
	MOVD   p+0(FP), R0
	MOVD   n+8(FP), R1
	MOVD   k+16(FP), R2
	ADD    $128, R2, R3
	VLD1.P 64(R3), [V16.B16, V17.B16, V18.B16, V19.B16]
	VLD1.P 64(R3), [V20.B16, V21.B16, V22.B16, V23.B16]
	VLD1   (R3), [V25.B16]
	ADD    $32, R3
	VLD1   (R3), [V26.B16]
	VMOVI  $15, V24.B16
	MOVD   $0x8040201008040201, R4
	VDUP   R4, V27.D2
	VEOR   V28.B16, V28.B16, V28.B16
	VEOR   V29.B16, V29.B16, V29.B16
	VEOR   V30.B16, V30.B16, V30.B16
	SUB    $64, R0
	BLOCK
	MOVD   R5, R6
	AND    R5<<31, R5, R7
	MOVD   ZR, R8

loop:
	ADD  $64, R0
	BLOCK
	LSL  $31, R5, R9
	ORR  R6>>33, R9, R9
	AND  R5, R9, R9
	MOVD R5, R6
	LSL  $1, R9, R10
	ORR  R7>>63, R10, R10
	MOVD R9, R7
	BIC  R10, R9, R9
	CBNZ R9, found
	ADD  $64, R8
	CMP  R1, R8
	BLT  loop
	MOVD $-1, R9
	MOVD R9, ret+24(FP)
	RET

found:
	RBIT R9, R9
	CLZ  R9, R9
	ADD  R8, R9, R9
	MOVD R9, ret+24(FP)
	RET
