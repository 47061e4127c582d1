#include "textflag.h"

// ADD adds to ACC what the bytes at OFF contribute to the low bytes of the
// fingerprints of 32 places, by the matrix in Y8.
#define ADD(OFF, ACC) \
	VMOVDQU        OFF(SI), Y9     \
	VGF2P8AFFINEQB $0, Y8, Y9, Y9  \
	VPXOR          Y9, ACC, ACC

// ONES sets the bits of OUT for the bytes of LO and HI that are all ones.
#define ONES(LO, HI, OUT) \
	VPCMPEQB  LO, Y8, LO \
	VPCMPEQB  HI, Y8, HI \
	VPMOVMSKB LO, R8     \
	VPMOVMSKB HI, R9     \
	SHLQ      $32, R9    \
	ORQ       R9, R8     \
	MOVQ      R8, OUT

// func rabinHits(p *byte, matrices *[48]uint64, hits *[4]uint64)
TEXT ·rabinHits(SB), NOSPLIT, $0-24
	MOVQ  p+0(FP), SI
	MOVQ  matrices+8(FP), DX
	MOVQ  hits+16(FP), DI
	MOVQ  $48, CX
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	VPXOR Y4, Y4, Y4
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7

loop:
	VPBROADCASTQ (DX), Y8
	ADD(0, Y0)
	ADD(32, Y1)
	ADD(64, Y2)
	ADD(96, Y3)
	ADD(128, Y4)
	ADD(160, Y5)
	ADD(192, Y6)
	ADD(224, Y7)
	ADDQ $8, DX
	DECQ SI
	DECQ CX
	JNZ  loop

	VPCMPEQB Y8, Y8, Y8
	ONES(Y0, Y1, 0(DI))
	ONES(Y2, Y3, 8(DI))
	ONES(Y4, Y5, 16(DI))
	ONES(Y6, Y7, 24(DI))
	VZEROUPPER
	RET
