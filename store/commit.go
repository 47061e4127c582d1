package store

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// Limits of a commit, in bytes.
const (
	MaxCommit = 64 << 20 // of the whole
	maxText   = 4 << 10  // of host, message and each tag

	maxCommitWire = MaxCommit + MaxCommit/4 // with padding; what is longer is none of ours
)

// A Seq numbers the commits of an incarnation, from 1.
type Seq uint64

// A CommitHash identifies a commit and, through its predecessor's hash in it, all commits before.
type CommitHash [32]byte

// String returns the hash in lower-case hex.
func (h CommitHash) String() string { return hex.EncodeToString(h[:]) }

// IsZero reports whether h is the zero value, which is no commit's hash.
func (h CommitHash) IsZero() bool { return h == CommitHash{} }

// chain names the commits of one incarnation.
type chain struct {
	client      ClientID
	incarnation Incarnation
}

// A Head is a commit, of the newest that somebody knows of its incarnation. It is enough to fetch the commit by.
type Head struct {
	Client      ClientID
	Incarnation Incarnation
	Seq         Seq
	Hash        CommitHash
}

// IsZero reports whether h is no commit.
func (h Head) IsZero() bool { return h.Seq == 0 }

func (h Head) chain() chain { return chain{h.Client, h.Incarnation} }

// String returns h as messages show it.
func (h Head) String() string {
	if h.IsZero() {
		return "none"
	}
	return fmt.Sprintf("client %s incarnation %s commit %d (%s)", h.Client.short(), h.Incarnation.short(), h.Seq, h.Hash.String()[:8])
}

// A SkipLink is a commit further back in the same chain.
type SkipLink struct {
	Seq  Seq
	Hash CommitHash
}

// MultichunkInfo announces a multichunk that a commit adds.
type MultichunkInfo struct {
	Name  Name
	Kind  Kind
	Hooks []ID // about one in 64 of its chunks
}

// CommitStats say what a commit has added.
type CommitStats struct {
	Chunks uint64
	Nodes  uint64
	Bytes  uint64 // plaintext of the chunks
	Wire   uint64 // multichunks on the remote
}

// A Commit is a published state of the volume. One that has been read is shared, and must not be changed.
type Commit struct {
	Client      ClientID
	Incarnation Incarnation
	Seq         Seq
	Prev        CommitHash // zero for the first
	Skip        []SkipLink // as Next makes them
	Seen        []Head     // the newest accepted head of every other chain
	Volume      [16]byte
	Root        Ref // of the volume's tree; zero is empty
	Snapshots   Ref // of the map of snapshots; zero is empty
	Multichunks []MultichunkInfo
	Time        time.Time // for display only
	Host        string
	Message     string
	Tags        []string
	Stats       CommitStats

	Acks    []NoticeID // the notices that the client goes by, see docs/gc.md
	Held    []Ref      // what open files need that is in neither tree
	Retired bool       // the last commit of its incarnation, which holds nothing any more

	Features seal.Features // of the object; what is unknown here makes the repository read-only

	public ed25519.PublicKey
	hash   CommitHash
}

// Head returns the head that names c, which must have been read from or put on the remote.
func (c *Commit) Head() Head { return Head{c.Client, c.Incarnation, c.Seq, c.hash} }

// Next returns a commit that follows c, or the first one of an incarnation if c is nil: identity, number and links to
// what is before are filled in.
func (g *Registration) Next(c *Commit) *Commit {
	next := &Commit{Client: g.Client, Incarnation: g.Incarnation, Seq: 1}
	if c != nil {
		if c.chain() != (chain{g.Client, g.Incarnation}) {
			panic("store: commit follows one of another incarnation")
		}
		next.Seq, next.Prev, next.Skip = c.Seq+1, c.hash, nextSkip(c)
	}
	return next
}

func (c *Commit) chain() chain { return chain{c.Client, c.Incarnation} }

// nextSkip returns the skip links of the commit after c: for each k, the two largest multiples of 2^k below its
// number. The first of them, its predecessor, is left out. All others are among what c links to.
func nextSkip(c *Commit) []SkipLink {
	var (
		links []SkipLink
		seen  [64]int // how many multiples of 2^k are larger than what is looked at
	)
	for _, l := range append([]SkipLink{{c.Seq, c.hash}}, c.links()...) {
		zeros := bits.TrailingZeros64(uint64(l.Seq))
		if seen[zeros] < 2 && l.Seq != c.Seq {
			links = append(links, l)
		}
		for k := range zeros + 1 {
			seen[k]++
		}
	}
	return links
}

// links returns all that c links to, newest first.
func (c *Commit) links() []SkipLink {
	if c.Seq <= 1 {
		return nil
	}
	return append([]SkipLink{{c.Seq - 1, c.Prev}}, c.Skip...)
}

// check returns an error unless c can be a commit.
func (c *Commit) check() error {
	if c.Seq == 0 || (c.Seq == 1) != c.Prev.IsZero() {
		return fmt.Errorf("number %d, predecessor %s", c.Seq, c.Prev)
	}
	before := c.Seq - 1
	for _, l := range c.Skip {
		if l.Seq == 0 || l.Seq >= before {
			return fmt.Errorf("number %d: skip link to %d", c.Seq, l.Seq)
		}
		before = l.Seq
	}
	return nil
}

const headSize = 16 + 16 + 8 + 32

func appendHead(dst []byte, h Head) []byte {
	dst = append(dst, h.Client[:]...)
	dst = append(dst, h.Incarnation[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.Seq))
	return append(dst, h.Hash[:]...)
}

func (d *decoder) head() Head {
	return Head{Client: d.bytes16(), Incarnation: d.bytes16(), Seq: Seq(d.uint64()), Hash: d.bytes32()}
}

// appendCommit encodes what a commit's hash is over.
func appendCommit(dst []byte, c *Commit, nonce [16]byte) []byte {
	dst = append(dst, c.Client[:]...)
	dst = append(dst, c.public...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Seq))
	dst = append(dst, nonce[:]...)
	dst = appendTime(dst, c.Time)
	dst = append(dst, c.Prev[:]...)
	dst = append(dst, c.Volume[:]...)
	dst = appendRoot(dst, c.Root)
	dst = appendRoot(dst, c.Snapshots)
	dst = append(dst, byte(len(c.Skip)))
	for _, l := range c.Skip {
		dst = binary.BigEndian.AppendUint64(dst, uint64(l.Seq))
		dst = append(dst, l.Hash[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.Seen)))
	for _, h := range c.Seen {
		dst = appendHead(dst, h)
	}
	dst = appendMultichunks(dst, c.Multichunks)
	dst = appendText(dst, c.Host)
	dst = appendText(dst, c.Message)
	dst = binary.AppendUvarint(dst, uint64(len(c.Tags)))
	for _, tag := range c.Tags {
		dst = appendText(dst, tag)
	}
	dst = appendStats(dst, c.Stats)
	if len(c.Acks) == 0 && len(c.Held) == 0 && !c.Retired {
		return dst
	}
	return appendCollection(dst, c)
}

// appendCollection encodes what garbage collection needs to know of a client.
func appendCollection(dst []byte, c *Commit) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(c.Acks)))
	for _, id := range c.Acks {
		dst = append(dst, id[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.Held)))
	for _, ref := range c.Held {
		dst = append(dst, byte(ref.Kind))
		dst = appendRoot(dst, ref)
	}
	var retired byte
	if c.Retired {
		retired = 1
	}
	return append(dst, retired)
}

// collection is the inverse of appendCollection. Commits that have nothing to say lack the fields.
func (d *decoder) collection(c *Commit) {
	if len(d.b) == 0 {
		return
	}
	for range d.count(len(NoticeID{})) {
		c.Acks = append(c.Acks, d.bytes16())
	}
	for range d.count(1 + rootSize) {
		kind := RefKind(d.byte())
		ref := d.root()
		ref.Kind = kind
		if kind > RefNode {
			d.fail()
		}
		c.Held = append(c.Held, ref)
	}
	c.Retired = d.byte() == 1
}

// parseCommit is the inverse of appendCommit. The incarnation is not in the bytes: it follows from the public key.
func parseCommit(b []byte) (*Commit, error) {
	d := decoder{b: b}
	c := &Commit{Client: d.bytes16(), public: bytes.Clone(d.bytes(ed25519.PublicKeySize)), Seq: Seq(d.uint64())}
	d.bytes16() // the nonce has done its work
	c.Time = d.time()
	c.Prev = d.bytes32()
	c.Volume = d.bytes16()
	c.Root, c.Snapshots = d.root(), d.root()
	for range d.byte() {
		c.Skip = append(c.Skip, SkipLink{Seq(d.uint64()), d.bytes32()})
	}
	if n := d.count(headSize); n > 0 {
		c.Seen = make([]Head, n)
	}
	for i := range c.Seen {
		c.Seen[i] = d.head()
	}
	c.Multichunks = d.multichunks()
	c.Host, c.Message = d.text(maxText), d.text(maxText)
	for range d.count(1) {
		c.Tags = append(c.Tags, d.text(maxText))
	}
	c.Stats = d.stats()
	d.collection(c)
	if d.bad {
		return nil, corruptf("commit is cut short")
	}
	if err := c.check(); err != nil {
		return nil, corruptf("commit: %v", err)
	}
	return c, nil
}

func appendMultichunks(dst []byte, infos []MultichunkInfo) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(infos)))
	for _, m := range infos {
		dst = append(dst, m.Name[:]...)
		dst = append(dst, byte(m.Kind))
		dst = binary.AppendUvarint(dst, uint64(len(m.Hooks)))
		for _, id := range m.Hooks {
			dst = append(dst, id[:]...)
		}
	}
	return dst
}

func (d *decoder) multichunks() []MultichunkInfo {
	n := d.count(16 + 1 + 1)
	if n == 0 {
		return nil
	}
	infos := make([]MultichunkInfo, n)
	for i := range infos {
		m := MultichunkInfo{Name: d.bytes16(), Kind: Kind(d.byte())}
		for range d.count(len(ID{})) {
			m.Hooks = append(m.Hooks, d.bytes32())
		}
		infos[i] = m
	}
	return infos
}

func appendStats(dst []byte, s CommitStats) []byte {
	dst = append(dst, 4)
	for _, v := range [...]uint64{s.Chunks, s.Nodes, s.Bytes, s.Wire} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// stats reads as many statistics as there are. Later programs may write more.
func (d *decoder) stats() (s CommitStats) {
	known := [...]*uint64{&s.Chunks, &s.Nodes, &s.Bytes, &s.Wire}
	for i := range int(d.byte()) {
		if v := d.uint64(); i < len(known) {
			*known[i] = v
		}
	}
	return s
}

// hashCommit returns the hash of the commit with the given encoding.
func (r *Repository) hashCommit(body []byte) CommitHash {
	h := sha256.New()
	h.Write([]byte("dedupfs 1 commit\x00"))
	h.Write(r.cfg.Repository[:])
	h.Write(body)
	return CommitHash(h.Sum(nil))
}

// commitName returns the name on the remote of the commit h. It follows from the hash, so that a commit which
// anything refers to can be fetched whatever a listing shows.
func (r *Repository) commitName(h Head) string {
	mac := hmac.New(sha256.New, r.commitNames[:])
	mac.Write(h.Hash[:])
	return groupDir(h.chain(), h.Seq.group()) + "/" + h.Seq.digits() + "-" + hex.EncodeToString(mac.Sum(nil)[:16])
}

// commitMessage is what the incarnation signs.
func (r *Repository) commitMessage(h CommitHash, name string) []byte {
	m := append([]byte("dedupfs 1 commit signature\x00"), r.cfg.Repository[:]...)
	return append(append(m, h[:]...), name...)
}

// A SealedCommit is a commit ready to be put, with the same bytes however often it takes. A client that keeps it on
// its disk before the first attempt can go on with it after a crash.
type SealedCommit struct {
	Head Head
	Name string // on the remote
	Wire []byte
}

// SealCommit signs and seals c, and gives it its hash. Texts that are too long are cut. c must be one that Next has
// made; key is that of its incarnation. Each call makes another commit, of which only one may ever be put.
func (r *Repository) SealCommit(c *Commit, key ed25519.PrivateKey) (*SealedCommit, error) {
	if err := r.ReadOnly(); err != nil {
		return nil, err
	}
	c.public = key.Public().(ed25519.PublicKey)
	if r.incarnation(c.Client, c.public) != c.Incarnation {
		return nil, errors.New("commit: the key is not that of the incarnation")
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	c.Host, c.Message = clip(c.Host, maxText), clip(c.Message, maxText)
	for i := range c.Tags {
		c.Tags[i] = clip(c.Tags[i], maxText)
	}
	var nonce [16]byte
	rand.Read(nonce[:])
	body := appendCommit(nil, c, nonce)
	if len(body) > MaxCommit {
		return nil, fmt.Errorf("commit of %d bytes: at most %d", len(body), MaxCommit)
	}
	c.hash = r.hashCommit(body)
	name := r.commitName(c.Head())
	signature := ed25519.Sign(key, r.commitMessage(c.hash, name))
	wire, err := r.keys.SealPadded(seal.KindCommit, name, append(signature, body...), c.Features)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", name, err)
	}
	return &SealedCommit{Head: c.Head(), Name: name, Wire: wire}, nil
}

// PutSealed puts a sealed commit and reads it back. It may be repeated.
func (r *Repository) PutSealed(ctx context.Context, s *SealedCommit) error {
	if err := r.putCopied(ctx, s.Name, s.Wire); err != nil {
		return fmt.Errorf("publish commit: %w", err)
	}
	return nil
}

// PutCommit is SealCommit and PutSealed.
func (r *Repository) PutCommit(ctx context.Context, c *Commit, key ed25519.PrivateKey) (Head, error) {
	s, err := r.SealCommit(c, key)
	if err != nil {
		return Head{}, err
	}
	return s.Head, r.PutSealed(ctx, s)
}

// GetCommit returns the commit h. Its signature and its hash have been checked. It returns ErrCorrupt or ErrFormat in
// an *ObjectError if the object is not that commit, and remote.ErrNotExist if there is none.
func (r *Repository) GetCommit(ctx context.Context, h Head) (*Commit, error) {
	if c := r.recent.get(h); c != nil {
		return c, nil
	}
	c, err := r.fetchCommit(ctx, r.commitName(h))
	if err != nil {
		return nil, err
	}
	if c.Head() != h {
		return nil, &ObjectError{r.commitName(h), corruptf("another commit lies there")}
	}
	return c, nil
}

// fetchCommit fetches and checks the commit that lies under name.
func (r *Repository) fetchCommit(ctx context.Context, name string) (*Commit, error) {
	c, size, err := getSealed(ctx, r, name, r.openCommit)
	if err != nil {
		return nil, err
	}
	r.recent.put(c, size)
	return c, nil
}

// openCommit opens the commit that lies under name and checks everything about it but its place in its chain.
func (r *Repository) openCommit(name string, wire []byte) (*Commit, error) {
	plain, features, err := r.keys.OpenPadded(seal.KindCommit, name, wire)
	if err != nil {
		return nil, err
	}
	if len(plain) < ed25519.SignatureSize {
		return nil, corruptf("commit of %d bytes", len(plain))
	}
	signature, body := plain[:ed25519.SignatureSize], plain[ed25519.SignatureSize:]
	c, err := parseCommit(body)
	if err != nil {
		return nil, err
	}
	c.Features = features
	c.Incarnation = r.incarnation(c.Client, c.public)
	c.hash = r.hashCommit(body)
	switch {
	case r.commitName(c.Head()) != name:
		return nil, corruptf("commit lies under a name that is not its own")
	case !ed25519.Verify(c.public, r.commitMessage(c.hash, name), signature):
		return nil, corruptf("commit: wrong signature")
	}
	if features.ReadOnly != 0 {
		r.forbidWriting(fmt.Errorf("%s has features %#x: %w", name, features.ReadOnly, ErrReadOnly))
	}
	return c, nil
}

// Dominates reports whether a has seen b, so that b is no head beside a.
func Dominates(a, b *Commit) bool {
	if a.chain() == b.chain() {
		return a.Seq > b.Seq
	}
	for _, h := range a.Seen {
		if h.chain() == b.chain() {
			return h.Seq >= b.Seq
		}
	}
	return false
}

// MaximalHeads returns those of heads, in their order, that no other of them has seen.
func (r *Repository) MaximalHeads(ctx context.Context, heads []Head) ([]Head, error) {
	commits := make([]*Commit, len(heads))
	for i, h := range heads {
		c, err := r.GetCommit(ctx, h)
		if err != nil {
			return nil, err
		}
		commits[i] = c
	}
	var maximal []Head
	for i, c := range commits {
		seen := false
		for _, other := range commits {
			seen = seen || Dominates(other, c)
		}
		if !seen {
			maximal = append(maximal, heads[i])
		}
	}
	return maximal, nil
}
