#include "textflag.h"

DATA half<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f
GLOBL half<>(SB), RODATA|NOPTR, $8

// SIGNS leaves in ACC, for the 32 places whose sign has its byte at OFF, the
// signs that the byte allows.
#define SIGNS(OFF, TL, TH, ACC, TMP) \
	VMOVDQU OFF(SI)(BX*1), ACC \
	VPSRLW  $4, ACC, TMP       \
	VPAND   Y6, ACC, ACC       \
	VPAND   Y6, TMP, TMP       \
	VPSHUFB ACC, TL, ACC       \
	VPSHUFB TMP, TH, TMP       \
	VPAND   TMP, ACC, ACC

// func signFirst(p *byte, n int, half *[3][2][16]byte) int
TEXT ·signFirst(SB), NOSPLIT, $0-32
	MOVQ           p+0(FP), SI
	MOVQ           n+8(FP), CX
	MOVQ           half+16(FP), DX
	VBROADCASTI128 0(DX), Y0
	VBROADCASTI128 16(DX), Y1
	VBROADCASTI128 32(DX), Y2
	VBROADCASTI128 48(DX), Y3
	VBROADCASTI128 64(DX), Y4
	VBROADCASTI128 80(DX), Y5
	VPBROADCASTQ   half<>(SB), Y6
	VPXOR          Y7, Y7, Y7
	XORQ           BX, BX

loop:
	SIGNS(0, Y0, Y1, Y8, Y9)
	SIGNS(1, Y2, Y3, Y10, Y11)
	SIGNS(2, Y4, Y5, Y12, Y13)
	VPAND     Y8, Y10, Y10
	VPAND     Y10, Y12, Y12
	VPTEST    Y12, Y12
	JNZ       found
	ADDQ      $32, BX
	CMPQ      BX, CX
	JLT       loop
	MOVQ      $-1, ret+24(FP)
	VZEROUPPER
	RET

found:
	VPCMPEQB  Y7, Y12, Y12
	VPMOVMSKB Y12, AX
	NOTL      AX
	BSFL      AX, AX
	ADDQ      BX, AX
	MOVQ      AX, ret+24(FP)
	VZEROUPPER
	RET
