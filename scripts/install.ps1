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
$PSNativeCommandUseErrorActionPreference = $false  # exit codes are looked at here
$Environment = $Environment -replace '[\\/]+$'  # it would escape the quote that a path with a space gets

function Invoke-Step([string] $Purpose, [string] $Program, [string[]] $Arguments, [string] $Advice) {
    # To Windows PowerShell 5.1 a line on standard error is an error where its own output is redirected.
    $ErrorActionPreference = "Continue"
    Write-Host "== $Purpose"
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) { throw "$Program ended with code $LASTEXITCODE. $Advice" }
}
$again = "Its last lines say why: mend that, then run this script again."

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
# pip comes last: without it the environment is a half that an earlier run left.
if (-not (Test-Path -LiteralPath (Join-Path $Environment "Scripts\pip.exe"))) {
    $words = @(Find-Python)
    $options = @($words | Select-Object -Skip 1)
    Invoke-Step "an environment in $Environment" $words[0] ($options + @("-m", "venv", $Environment)) $again
}

$folder = Join-Path $Environment "wheels"
if (Test-Path -LiteralPath $folder) { Remove-Item -LiteralPath $folder -Recurse }
$sources = (Get-ChildItem -LiteralPath (Join-Path $PSScriptRoot "..\packages") -Directory).FullName
$build = @("-m", "pip", "wheel", "--no-deps", "--wheel-dir", $folder) + $sources
Invoke-Step "the six wheels, which takes minutes" $python $build $again
$wheels = (Get-ChildItem -LiteralPath $folder -Filter *.whl).FullName
Invoke-Step "wLLM itself" $python (@("-m", "pip", "install", "--no-deps", "--force-reinstall") + $wheels) $again

# Before what the wheels need: pip would take the CPU build.
$which = @("-m", "wllm.doctor.torch_build") + @(if ($Cpu) { "--cpu" })
$torch = Invoke-Step "which torch" $python $which "Its last line says why. With -Cpu wLLM runs without the GPU."
Invoke-Step "$torch" $python (@("-m", "pip", "install", "--upgrade") + $torch) $again
Invoke-Step "what else the wheels need" $python (@("-m", "pip", "install") + $wheels) $again

$wllm = Join-Path $Environment "Scripts\wllm.exe"
Invoke-Step "what is there now" $wllm @("doctor") "wLLM is installed, but has a problem: see its fix above."
Write-Host "Serve a small model on http://127.0.0.1:8000 with: & '$wllm' serve"
