#!/bin/bash
# make demo: from a bare Debian or Ubuntu to a mounted file system with real
# files in it. It can be run again at any time; what you put in yourself stays.
set -euo pipefail
cd "$(dirname "$0")/.."

demo=${DEMO_DIR:-${TMPDIR:-/tmp}/dedupfs-demo-$(id -u)}
mnt=$demo/mnt
wanted=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod)

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -z "${NO_COLOR:-}" ] && [ -t 1 ] || say() { printf '\n%s\n' "$*"; }

# as_root runs a command as root, or says that it cannot.
as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
		echo "Please run as root: $*" >&2
		return 1
	fi
}

# install installs the Debian packages that are named.
install() {
	say "Installing $*"
	command -v apt-get >/dev/null || { echo "Please install: $*" >&2; return 1; }
	as_root apt-get update -q
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

# newer_go says whether there is a Go that can build this, or fetch one that can.
newer_go() {
	command -v go >/dev/null || return 1
	case $(go env GOVERSION) in
	go1.2[1-9]* | go1.[3-9][0-9]* | go[2-9]*) return 0 ;;
	*) return 1 ;;
	esac
}

need_go() {
	newer_go && return
	[ -x /usr/local/go/bin/go ] && PATH=/usr/local/go/bin:$PATH && newer_go && return
	install golang-go ca-certificates || true
	newer_go && return
	echo "This needs Go $wanted or newer, and the packages of this system have none." >&2
	echo "Get it from https://go.dev/dl/, unpack it into /usr/local, and run make demo again." >&2
	return 1
}

need_fuse() {
	local missing=()
	command -v fusermount3 >/dev/null || missing+=(fuse3)
	command -v rsync >/dev/null || missing+=(rsync)
	[ ${#missing[@]} = 0 ] || install "${missing[@]}"
	[ -e /dev/fuse ] || as_root modprobe fuse || true
	[ -e /dev/fuse ] || { echo "This system has no /dev/fuse; in a container, run it with --device /dev/fuse --cap-add SYS_ADMIN." >&2; return 1; }
}

# stored says how many bytes lie in the repository.
stored() { du -sb --apparent-size "$demo/repository" | cut -f1; }

# show_growth runs a command, waits until all is on the remote, and says what it cost.
show_growth() {
	local before after
	before=$(stored)
	"$@"
	dedupfs sync "$mnt"
	after=$(stored)
	echo "  the repository grew by $(numfmt --to=iec $((after - before)))"
}

# fill puts real files in: this project, and a part of Go's own source.
fill() {
	mkdir -p "$mnt/$1"
	rsync -a --delete --exclude .git --exclude bin ./ "$mnt/$1/dedupfs/"
	rsync -a --delete "$(go env GOROOT)/src/cmd/compile" "$(go env GOROOT)/src/net" "$mnt/$1/"
}

need_go
need_fuse

say "Building bin/dedupfs-slim (make build makes the one with all storage backends)"
make --no-print-directory build-slim GO="$(command -v go)"
dedupfs() { bin/dedupfs-slim "$@"; }

mkdir -p "$mnt" 2>/dev/null || true # fails if a dead mount lies there
[ -f "$demo/password" ] || (umask 077 && echo demo >"$demo/password")
export DEDUPFS_PASSWORD_FILE=$demo/password DEDUPFS_CACHE_DIR=$demo/cache

if [ ! -d "$demo/repository" ]; then
	say "Creating a repository in $demo/repository"
	dedupfs init "$demo/repository"
fi
if ! dedupfs status "$mnt" >/dev/null 2>&1; then
	say "Mounting it at $mnt"
	dedupfs mount -d "$demo/repository" "$mnt"
fi

say "Copying real files in: $mnt/first"
show_growth fill first
echo "  they are $(numfmt --to=iec "$(du -sb --apparent-size "$mnt/first" | cut -f1)")"

say "Copying the same once more: $mnt/second"
show_growth fill second

say "Changing a line in one file, and making a snapshot"
echo "// changed at $(date)" >>"$mnt/second/dedupfs/README.md"
show_growth dedupfs snapshot create "$(date +demo-%Y%m%d-%H%M%S)" "$mnt"
dedupfs snapshot list "$mnt"

say "It is mounted at $mnt. Try:"
cat <<END
  export PATH=$PWD/bin:\$PATH DEDUPFS_PASSWORD_FILE=$demo/password DEDUPFS_CACHE_DIR=$demo/cache
  ls $mnt                                     what you have put in
  ls $mnt/.snapshots                          the past, read-only
  dedupfs-slim status $mnt                    how far the upload is
  ls -R $demo/repository | head               what the storage sees
  dedupfs-slim umount $mnt                    unmount, when all is on the remote
  rm -rf $demo                                and then forget it all
END
