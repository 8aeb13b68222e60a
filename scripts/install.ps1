<#
.SYNOPSIS
Installs wLLM from this clone into an environment of its own, with the build of torch that suits the NVIDIA driver.
.DESCRIPTION
Needs Python 3.11, 3.12 or 3.13 with 64 bits; no administrator, no compiler, no CUDA toolkit. Changes only the folder of
the environment. Run again, it brings that up to date. From a prompt in the clone:
    powershell -ExecutionPolicy Bypass -File scripts\install.ps1
.PARAMETER Environment
The folder of the environment, which is made where it is missing.
.PARAMETER Cpu
Take the CPU build of torch, whatever GPU is there.
#>
param([string] $Environment = "wllm-env", [switch] $Cpu)

$ErrorActionPreference = "Stop"

function Invoke-Step([string] $Purpose, [string] $Program, [string[]] $Arguments) {
    Write-Host "== $Purpose"
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) {
        throw "$Program ended with code $LASTEXITCODE. Its last lines say why: mend that, then run this script again."
    }
}

# Not its path: PowerShell may read that wrongly from another program where it has letters that are not English.
function Find-Python {
    $ErrorActionPreference = "Continue"  # what a program says on standard error is no error of ours
    $test = "import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13) and sys.maxsize > 2**32))"
    foreach ($command in "py -3.13", "py -3.12", "py -3.11", "python") {
        $words = $command -split " "
        $options = @($words | Select-Object -Skip 1)
        if (Get-Command $words[0] -ErrorAction Ignore) {
            & $words[0] @options -c $test 2>&1 | Out-Null
            if ($LASTEXITCODE -eq 0) { return $words }
        }
    }
    throw "There is no Python 3.11, 3.12 or 3.13 with 64 bits. Install one from https://www.python.org/downloads, " +
        "then run this script again in a new window."
}

$python = Join-Path $Environment "Scripts\python.exe"
if (-not (Test-Path $python)) {
    $words = @(Find-Python)
    $options = @($words | Select-Object -Skip 1)
    Invoke-Step "an environment in $Environment" $words[0] ($options + @("-m", "venv", $Environment))
}

$folder = Join-Path $Environment "wheels"
if (Test-Path $folder) { Remove-Item $folder -Recurse }
$sources = (Get-ChildItem (Join-Path $PSScriptRoot "..\packages") -Directory).FullName
Invoke-Step "the six wheels, which takes minutes" $python (@("-m", "pip", "wheel", "--no-deps", "--wheel-dir", $folder) + $sources)
$wheels = (Get-ChildItem (Join-Path $folder "*.whl")).FullName
Invoke-Step "wLLM itself" $python (@("-m", "pip", "install", "--no-deps", "--force-reinstall") + $wheels)

# Before what the wheels need: pip would take the CPU build.
$options = @(if ($Cpu) { "--cpu" })
$torch = & $python -m wllm.doctor.torch_build @options
if ($LASTEXITCODE -ne 0) { throw "No torch for this machine: see above. With -Cpu wLLM runs without the GPU." }
Invoke-Step "$torch" $python (@("-m", "pip", "install", "--upgrade") + $torch)
Invoke-Step "what else the wheels need" $python (@("-m", "pip", "install") + $wheels)

Write-Host "== what is there now"
$wllm = Join-Path $Environment "Scripts\wllm.exe"
& $wllm doctor
if ($LASTEXITCODE -ne 0) { throw "wLLM is installed, but has a problem: see its fix above." }
Write-Host "Serve a small model on http://127.0.0.1:8000 with: $wllm serve"
