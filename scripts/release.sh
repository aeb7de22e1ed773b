#!/usr/bin/env bash
# Makes a release: one commit, in which the released modules require each other at the version,
# CHANGELOG.md has its heading, and README.md has no words for the time before the first version; and a
# tag for each module. It first does all that in a clone, and
# gets each module into an empty one from a proxy. With --dry-run it stops there. It never pushes.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "release: $*" >&2; exit 1; }
version=${1-} dry=${2-} number='(0|[1-9][0-9]*)'
[[ $# -le 2 && $version && ( -z $dry || $dry == --dry-run ) ]] || fail "usage: scripts/release.sh v1.2.3 [--dry-run]"
[[ $version =~ ^v[01]\.$number\.$number(-[0-9A-Za-z.-]+)?$ ]] || fail "$version is no version: write v1.2.3 or v1.2.3-rc.1 (v2 needs other module paths)"
changed=$(git status --porcelain)
[[ -z $changed ]] || fail "commit these changes, or stash them:"$'\n'"$changed"
git symbolic-ref -q HEAD >/dev/null || [[ $dry ]] || fail "no branch is checked out: git switch main"
awk '/^## /{here = /\[Unreleased\]/} here && /^- /{found = 1} END{exit !found}' CHANGELOG.md ||
	fail "CHANGELOG.md has no entries under [Unreleased]: list the changes for users"

export GOWORK=off
root=$(go list -m) && mods=$(git ls-files go.mod '*/go.mod')
# Of each module that users import: its folder, with a slash at the end, and ./ for the root.
released=$(grep -vE '^(benchmarks|examples|integration)/' <<<"$mods" | sed 's|^|./|; s|go\.mod$||')
path() { local dir=${1#./}; echo "$root${dir:+/${dir%/}}"; }
for dir in $released; do
	tag=${dir#./}$version
	[[ -z $(git tag --list "$tag") ]] || fail "tag $tag exists: choose another version, or delete it if it was never pushed (git tag --delete $tag)"
done

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
git clone -q --no-tags . "$tmp/clone"
for key in user.name user.email; do git -C "$tmp/clone" config $key "$(git config $key || echo release)"; done
(
	cd "$tmp/clone"
	for mod in $mods; do
		for dir in $released; do
			if grep -qE "(^|\s)$(path "$dir") v" "$mod"; then go mod edit -require="$(path "$dir")@$version" "$mod"; fi
		done
		(cd "$(dirname "$mod")" && go mod tidy -diff) || fail "$mod or its go.sum is not tidy: run go mod tidy there with GOWORK=off"
	done
	awk -v heading="## [${version#v}] - $(date -u +%F)" '{print} /^## \[Unreleased\]/{print "\n" heading}' CHANGELOG.md >"$tmp/changelog"
	cat "$tmp/changelog" >CHANGELOG.md
	sed -i '/<!-- until the first version -->/,/<!-- end -->/d' README.md
	git commit -qam "Release $version"
	for dir in $released; do git tag -am "Release $version" "${dir#./}$version"; done
)

# The proxy has what the go command packs from the tags, and the usual one has the modules of others.
usual="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOFLAGS="-modcacherw -trimpath" GONOSUMDB=$root GOPRIVATE='' GONOPROXY=''
for dir in $released; do
	GOPROXY=direct GOMODCACHE=$tmp/packed GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$tmp/clone.insteadOf" \
		GIT_CONFIG_VALUE_0="https://$root" go mod download "$(path "$dir")@$version"
done
export GOPROXY="file://$tmp/packed/cache/download,$usual" GOMODCACHE=$tmp/cache
for dir in $released; do
	echo "${dir#./}$version"
	mkdir -p "$tmp/user/$dir" && cd "$tmp/user/$dir"
	(go mod init user && go get "$(path "$dir")@$version" && go get "$(path "$dir")/...@$version" && go build "$(path "$dir")/...") >"$tmp/said" 2>&1 ||
		fail "$(path "$dir") cannot be got by users:"$'\n'"$(cat "$tmp/said")"
	other=$(go list -m all | grep "^$root" | grep -v " $version\$" || true)
	[[ -z $other ]] || fail "$(path "$dir") requires another version: $other"
	cd - >/dev/null
done
[[ -z $dry ]] || { echo "These tags would be made. Nothing has been changed."; exit; }
git fetch -q "$tmp/clone" HEAD 'refs/tags/*:refs/tags/*'
git merge -q --ff-only FETCH_HEAD
echo "These tags have been made. Publish them: git push --atomic --follow-tags"
