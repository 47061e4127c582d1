package store

import "context"

// repairSmall repairs an object that is no multichunk. It returns nil if nothing can be done.
func (c *checker) repairSmall(ctx context.Context, d *Damage, dry bool) (*Fix, error) {
	if parent(d.Object) != ballastDir {
		return nil, nil
	}
	f := &Fix{Damage: *d, How: "renewed"}
	if dry {
		return f, nil
	}
	if f.Refused = c.r.st.Delete(ctx, d.Object); f.Refused != nil {
		return f, ctx.Err()
	}
	return f, c.r.PutBallast(ctx)
}
